"""Pods under mutual TLS: each finds its own files and nobody else's, and no port is open that is not used."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from pods import expand, projected, secret
from support.certificates import alternative_names
from support.tests_deploy import DEPLOY, Object, Write, objects_of, problems, settings_of

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.job.environment import environment_overrides, rank_from_environment
from taihu.core.job.security import check_own_certificate, security_of
from taihu.core.security.identity import Role
from taihu.launch.kubernetes.options import CERTIFICATES

Certs = Callable[..., tuple[int, str, str]]
KINDS: tuple[list[str], ...] = (
    [],
    ["--jobset"],
    ["--trainjob"],
    ["--set", "exchange.kind=ring"],
    ["--jobset", "--set", "exchange.kind=ring"],
)
# Together in one process, as the models of Kubernetes' objects take seconds to import.
pytestmark = pytest.mark.xdist_group("kubernetes")


def templates_of(objects: list[Object]) -> list[tuple[Role, Object, list[int]]]:
    """The role, the pod, and the ranks of all pods that are made of each template."""
    found: list[tuple[Role, Object, list[int]]] = []
    for item in objects:
        if item["kind"] == "StatefulSet":
            found.append(("server", item["spec"]["template"]["spec"], list(range(item["spec"]["replicas"]))))
        for spec in specs_of(item):
            role: Role = spec["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
            pod = spec["template"]["spec"]
            own = {each["name"]: each["value"] for each in pod["containers"][0]["env"] if "value" in each}
            indices = map(str, range(spec["completions"]))
            ranks = [rank_from_environment({**own, "JOB_COMPLETION_INDEX": index}, role) for index in indices]
            found.append((role, pod, [rank for rank in ranks if rank is not None]))
    return found


def specs_of(item: Object) -> list[Object]:
    """The specifications of the Jobs that an object is or has."""
    if item["kind"] == "Job":
        return [item["spec"]]
    spec = item.get("spec", {})
    spec = spec["template"]["spec"] if item["kind"] == "TrainingRuntime" else spec
    return [each["template"]["spec"] for each in spec.get("replicatedJobs", ())]


def mounted(pod: Object) -> dict[str, tuple[str, str]]:
    """The Secret and the key of every file among a pod's certificates."""
    (volume,) = [each["projected"] for each in pod["volumes"] if each["name"] == "certificates"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "certificates"]
    assert (mount["mountPath"], mount["readOnly"]) == (CERTIFICATES, True)
    # For the pod's group; the daemons refuse a key that everybody can read.
    assert volume["defaultMode"] == 0o440
    return {
        item["path"]: (source["secret"]["name"], item["key"])
        for source in volume["sources"]
        for item in source["secret"]["items"]
    }


@pytest.mark.parametrize("source", ["--tls-secret", "--issuer"])
@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_each_pod_is_taken_for_who_it_is_by_what_it_mounts(
    source: str, kind: list[str], write_manifest: Write, run_certs: Certs, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text("name = 'mine'\n")
    flags = ["--workers", "3", *([] if "exchange.kind=ring" in kind else ["--servers", "2"])]
    objects = objects_of(write_manifest("job.toml", *flags, *kind, source, "tls"))
    assert problems(objects) == []
    made = tmp_path / "made"
    ring = kind[-2:] if "exchange.kind=ring" in kind else []
    code, _, error = run_certs("job.toml", *flags, *ring, "--out", made)
    assert code == 0, error
    secrets = {item["spec"]["secretName"]: item["spec"] for item in objects if item["kind"] == "Certificate"}
    settings = settings_of(objects)
    seen = []
    for number, (role, pod, ranks) in enumerate(templates_of(objects)):
        found = mounted(pod)
        members = [f"{role}-{rank}" for rank in ranks]
        assert set(found) == {"ca.pem", *(f"{each}{end}" for each in members for end in (".pem", "-key.pem"))}
        here = tmp_path / f"pod-{number}"
        here.mkdir()
        for file, (origin, key) in found.items():
            if source == "--tls-secret":
                assert (origin, key) == ("tls", file)
            else:
                member = file.removesuffix(".pem").removesuffix("-key")
                assert key == {f"{member}.pem": "tls.crt", f"{member}-key.pem": "tls.key", "ca.pem": "ca.crt"}[file]
                assert origin in secrets
                assert file == "ca.pem" or origin == f"mine-{member}-tls"
            (here / file).write_bytes((made / file).read_bytes())
            (here / file).chmod(0o440)
        own = {name: value.replace(CERTIFICATES, str(here)) for name, value in settings.items()}
        job = Job.model_validate({"name": "mine", **environment_overrides(own)})
        assert job.security.required
        for rank in ranks:
            check_own_certificate(security_of(job, role, rank), role, rank)
            seen.append(f"{role}-{rank}")
    expected = [f"{role}-{rank}" for role, count in (("server", job.servers), ("worker", 3)) for rank in range(count)]
    assert sorted(seen) == expected
    if source == "--issuer":
        asked = {
            name.removeprefix("mine-").removesuffix("-tls"): [
                *(("URI", uri) for uri in spec["uris"]),
                *(("DNS", each) for each in spec.get("dnsNames", ())),
            ]
            for name, spec in secrets.items()
        }
        host = "worker-0" if ring else "server-0"
        assert [each for each, known in asked.items() if ("DNS", "coordinator.mine.taihu") in known] == [host]
        # What an authority of cert-manager is asked for is what ours issues.
        assert asked == {
            each: alternative_names(made / f"{each}.pem") for each in (*expected, "observer-0", "operator-0")
        }
        assert {tuple(spec["usages"]) for spec in secrets.values()} == {
            ("digital signature", "server auth", "client auth")
        }


def test_pods_without_a_cluster_have_the_files_of_their_template_alone(
    write_manifest: Write, run_certs: Certs, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text("")
    assert run_certs("job.toml", "--workers", "3", "--out", tmp_path / "made")[0] == 0
    made = secret("tls", tmp_path / "made")
    assert "ca-key.pem" not in made["data"]
    assert problems([made]) == []
    objects = [*objects_of(write_manifest("job.toml", "--workers", "3", "--tls-secret", "tls")), made]
    pods = expand(objects, IPv4Network("10.0.0.0/24"))
    seen = {}
    for name, (_, pod) in pods.items():
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "certificates"]
        files = projected(volume, objects)
        assert files == {file: (tmp_path / "made" / file).read_bytes() for file in files}
        seen[name] = {file for file in files if not file.endswith("-key.pem")} - {"ca.pem"}
        with pytest.raises(KeyError, match="tls"):
            projected(volume, objects[:-1])
    servers, others = {"server-0.pem", "server-1.pem"}, {"worker-1.pem", "worker-2.pem"}
    assert seen == {
        "taihu-server-0": servers,
        "taihu-server-1": servers,
        "taihu-first-0": {"worker-0.pem"},
        "taihu-worker-0": others,
        "taihu-worker-1": others,
    }


def test_without_a_secret_nothing_is_mounted_or_demanded(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    text = write_manifest("job.toml")
    assert "certificates" not in text
    assert "TAIHU_SECURITY" not in text


@pytest.mark.parametrize("flags", [(), ("--jobset",), ("--trainjob",), ("--direct-port", "7071")], ids=" ".join)
def test_the_ports_of_pods_are_open_and_no_others(
    flags: tuple[str, ...], write_manifest: Write, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text("")
    objects = objects_of(write_manifest("job.toml", *flags))
    policies = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "NetworkPolicy"}
    labels = {"app.kubernetes.io/name": "taihu", "app.kubernetes.io/instance": "taihu"}
    members = {"podSelector": {"matchLabels": labels}}
    assert all(spec["podSelector"] == members["podSelector"] for spec in policies.values())
    (own,), (metrics,) = (policies[name]["ingress"] for name in ("taihu", "taihu-metrics"))
    assert own["from"] == [members]
    assert metrics == {"ports": [{"port": 9400}]}
    assert metrics["ports"][0] not in own["ports"]
    opened = {each["port"] for each in (*own["ports"], *metrics["ports"])}
    for _, pod, _ in templates_of(objects):
        listening = {each["containerPort"] for each in pod["containers"][0]["ports"]}
        assert listening == opened == ({7070, 9400, 7071} if "--direct-port" in flags else {7070, 9400})
        probes = [pod["containers"][0][f"{name}Probe"] for name in ("startup", "liveness", "readiness")]
        assert {probe["httpGet"]["port"] for probe in probes} == {9400}


def test_the_overlay_has_the_issuer_that_certificates_ask_for() -> None:
    objects = objects_of((DEPLOY / "k8s" / "overlays" / "cert-manager" / "issuers.yaml").read_text())
    assert problems(objects) == []
    issuers = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Issuer"}
    (authority,) = [item["spec"] for item in objects if item["kind"] == "Certificate"]
    asking = objects_of((DEPLOY / "k8s" / "cert-manager" / "certificate.yaml").read_text())
    assert {item["spec"]["issuerRef"]["name"] for item in asking} == {"taihu"}
    assert issuers["taihu"] == {"ca": {"secretName": authority["secretName"]}}
    assert "selfSigned" in issuers[authority["issuerRef"]["name"]]
    assert authority["isCA"]


def test_what_is_wrong_with_a_certificate_is_found(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    text = write_manifest("job.toml", "--issuer", "ClusterIssuer/ca")
    assert "kind: ClusterIssuer" in text
    assert problems(objects_of(text)) == []
    for right, wrong in (
        ("secretName:", "secretNames:"),
        ("rotationPolicy: Always", "rotationPolicy: Often"),
        ("cert-manager.io/v1", "cert-manager.io/v1alpha1"),
        ("- digital signature", "- signature"),
        ("dnsNames:", "names:"),
        ("defaultMode:", "mode:"),
    ):
        assert right in text, right
        assert problems(objects_of(text.replace(right, wrong))), wrong


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--tls-secret", "a", "--issuer", "b"), "--issuer: certificates come from one place"),
        (("--issuer", "Role/b"), "--issuer Role/b: expected NAME, Issuer/NAME or ClusterIssuer/NAME"),
        (("--issuer", "Issuer/"), "--issuer Issuer/: expected NAME"),
    ],
)
def test_certificates_that_cannot_be_had_are_told_of(
    arguments: tuple[str, ...], expected: str, write_manifest: Write, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text("")
    with pytest.raises(ConfigError, match=expected):
        write_manifest("job.toml", *arguments)
