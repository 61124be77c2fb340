"""`taihu manifest`: what it writes is what Kubernetes takes, and pods find each other by it."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.caffe_nets import cifar10_quick
from support.strategies import CHARACTERS
from support.tests_deploy import DEPLOY, Object, Write, by_kind, objects_of, problems, settings_of

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, load_job
from taihu.core.job.environment import environment_overrides, rank_from_environment
from taihu.core.job.variables import check_variables
from taihu.core.process.memory.mapped_files import SHARED_MEMORY
from taihu.launch.kubernetes.manifest import manifest, object_name
from taihu.launch.kubernetes.options import ManifestOptions, Resources

Taihu = Callable[..., subprocess.CompletedProcess[str]]

ROOT = DEPLOY.parent
# Together in one process, as the models of Kubernetes' objects take seconds to import.
pytestmark = pytest.mark.xdist_group("kubernetes")


AGENTS = ("--agents", "2", "--checkpoint-claim", "c")


def jobs_of(objects: list[Object]) -> list[Object]:
    """The specifications of the workers' Jobs."""
    if any(item["kind"] == "JobSet" for item in objects):
        replicated = by_kind(objects, "JobSet")["spec"]["replicatedJobs"]
        return [each["template"]["spec"] for each in replicated if each["name"] != "server"]
    return [item["spec"] for item in objects if item["kind"] == "Job"]


def ranks_of(objects: list[Object]) -> list[int | None]:
    """The ranks that the pods of all Jobs find in their environment."""
    ranks = []
    for job in jobs_of(objects):
        (container,) = job["template"]["spec"]["containers"]
        own = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        indices = range(job["completions"])
        ranks += [rank_from_environment({**own, "JOB_COMPLETION_INDEX": str(index)}, "worker") for index in indices]
    return ranks


@settings(deadline=None, max_examples=20)
@given(
    servers=st.integers(1, 300),
    workers=st.integers(1, 5000),
    ring=st.booleans(),
    jobset=st.booleans(),
    cpus=st.integers(1, 128),
    claim=st.none() | st.just("images"),
)
def test_every_manifest_is_valid_and_means_the_job(
    *, servers: int, workers: int, ring: bool, jobset: bool, cpus: int, claim: str | None
) -> None:
    text = '[exchange]\nkind = "ring"\n' if ring else 'name = "My.Job_7"\n'
    given_beside: dict[str, dict[str, object]] = {"cluster": {"servers": servers, "workers": workers}}
    job = Job.model_validate({**tomllib.loads(text), "cluster": given_beside["cluster"]})
    options = ManifestOptions(jobset=jobset, worker=Resources(cpus, "3Gi"), data_claim=claim)
    objects = manifest(job, text, given_beside, options)
    assert problems(objects) == []
    understood = Job.model_validate({**tomllib.loads(text), **environment_overrides(settings_of(objects))})
    assert understood.cluster.workers == workers
    assert ranks_of(objects) == list(range(workers))
    assert understood.servers == (0 if ring else servers)
    name = object_name(job, None)
    first = f"{name}-{'first' if ring else 'server'}-0" + ("-0" if jobset else "")
    assert understood.cluster.coordinator == f"{first}.{name}:7070"
    kinds = [item["kind"] for item in objects]
    assert ("StatefulSet" in kinds) == (not jobset and not ring)


def nodes_of(objects: list[Object]) -> Object:
    """The container of a TrainJob's nodes."""
    (runtime,) = [item for item in objects if item["kind"].endswith("TrainingRuntime")]
    jobs = {each["name"]: each["template"] for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    assert jobs["node"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    (container,) = jobs["node"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("kind", ["", "--jobset", "--trainjob"])
@pytest.mark.parametrize("servers", [0, 2])
def test_workers_run_a_script_whose_gradients_come_back(
    kind: str, servers: int, write_manifest: Write, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text("name = 'mine'\n")
    (tmp_path / "train.py").write_text("import taihu.torch\n")
    flags = [*([kind] if kind else []), *(["--servers", str(servers)] if servers else [])]
    words = ("--script", "train.py", "--script-arguments", "--name 'two words'")
    objects = objects_of(write_manifest("job.toml", "--workers", "3", *flags, *words))
    assert problems(objects) == []
    understood = Job.model_validate(environment_overrides(settings_of(objects)))
    assert (understood.exchange.returns, understood.servers, understood.cluster.workers) == (
        "script" if servers else "gradients",
        servers,
        3,
    )
    (files,) = [item["data"] for item in objects if item["metadata"]["name"].endswith("-job")]
    assert files["train.py"] == "import taihu.torch\n"
    jobs = [nodes_of(objects)] if kind == "--trainjob" else []
    for container in jobs or [job["template"]["spec"]["containers"][0] for job in jobs_of(objects)]:
        assert container["args"] == ["/etc/taihu/train.py", "--name", "two words"]
        assert container["image"] == "localhost/taihu-torch:latest"
        environment = {item["name"]: item.get("value") for item in container["env"]}
        assert (environment["TAIHU_JOB"], environment["OMP_NUM_THREADS"]) == ("/etc/taihu/job.toml", "2")
        # It listens when it likes.
        assert not {name for name in container if name.endswith("Probe")}
        check_variables(environment)
    role = "server" if servers else "node" if kind == "--trainjob" else "first"
    pod = f"mine-{role}-0-0" if kind else f"mine-{role}-0"
    assert understood.cluster.coordinator == f"{pod}.mine:7070"


@settings(deadline=None, max_examples=20)
@given(servers=st.integers(0, 30), workers=st.integers(1, 500), shared=st.booleans(), everywhere=st.booleans())
def test_a_trainjob_is_valid_and_means_the_job(*, servers: int, workers: int, shared: bool, everywhere: bool) -> None:
    text = "" if servers else '[exchange]\nkind = "ring"\n'
    given_beside: dict[str, dict[str, object]] = {"cluster": {"servers": servers or 1, "workers": workers}}
    job = Job.model_validate({**tomllib.loads(text), "cluster": given_beside["cluster"]})
    options = ManifestOptions(
        runtime="ClusterTrainingRuntime" if everywhere else "TrainingRuntime",
        run_claim="results" if shared else None,
        namespace="teams",
    )
    objects = manifest(job, text, given_beside, options)
    assert problems(objects) == []
    runtime = by_kind(objects, options.runtime)
    assert ("namespace" in runtime["metadata"]) is not everywhere
    train = by_kind(objects, "TrainJob")["spec"]
    assert train["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": options.runtime,
        "name": runtime["metadata"]["name"],
    }
    assert train["trainer"]["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == workers
    counts = {
        each["name"]: each["template"]["spec"]["completions"]
        for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]
    }
    assert counts == ({"server": servers, "node": workers} if servers else {"node": workers})
    container = nodes_of(objects)
    assert container["args"] == ["worker", "/etc/taihu/job.toml"]
    assert "TAIHU_RANK_OFFSET" not in {item["name"] for item in container["env"]}
    # Pods that are all alike can keep results on a volume that all of them mount, or on none.
    assert ("runs" in {each["name"] for each in container["volumeMounts"]}) is shared
    assert ("TAIHU_RUN__DIR" in settings_of(objects)) is shared


def test_what_is_wrong_with_a_trainjob_is_found(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    text = write_manifest("job.toml", "--trainjob")
    assert problems(objects_of(text)) == []
    for right, wrong in (
        ("numNodes", "numNode"),
        ("runtimeRef", "runtimeReference"),
        ("mlPolicy", "mlPolicies"),
        ("trainer.kubeflow.org/v1alpha1", "trainer.kubeflow.org/v1beta1"),
        ("targetReplicatedJobs", "targetReplicatedJob"),
        ("completionMode", "completionsMode"),
    ):
        assert right in text, right
        assert problems(objects_of(text.replace(right, wrong))), wrong


def test_a_script_may_lie_in_the_image(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    objects = objects_of(write_manifest("job.toml", "--script", "/app/train.py", "--image", "mine"))
    for job in jobs_of(objects):
        (container,) = job["template"]["spec"]["containers"]
        assert (container["args"], container["image"]) == (["/app/train.py"], "mine")


def test_a_port_beside_grpc_is_asked_for_only_when_named(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("name = 'big'\n")
    for arguments, expected in (([], {7070, 9400}), (["--direct-port", "7071"], {7070, 7071, 9400})):
        objects = objects_of(write_manifest("job.toml", *arguments))
        assert problems(objects) == []
        assert {port["port"] for port in by_kind(objects, "Service")["spec"]["ports"]} == expected
        (container,) = by_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
        assert {port["containerPort"] for port in container["ports"]} == expected
        assert settings_of(objects).get("TAIHU_DIRECT_PORT") == ("7071" if arguments else None)


def test_counts_reach_objects_and_pods(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("name = 'big'\n[train]\nsteps = 7\n")
    objects = objects_of(write_manifest("job.toml", "--workers", "64", "--servers", "8", "--set", "train.batch=16"))
    assert problems(objects) == []
    assert by_kind(objects, "StatefulSet")["spec"]["replicas"] == 8
    for count, job in zip((1, 63), jobs_of(objects), strict=True):
        shown = (job["completions"], job["parallelism"], job["completionMode"], job["backoffLimit"])
        assert shown == (count, count, "Indexed", 0)
    data = settings_of(objects)
    assert (data["TAIHU_CLUSTER__WORKERS"], data["TAIHU_CLUSTER__SERVERS"], data["TAIHU_TRAIN__BATCH"]) == (
        "64",
        "8",
        "16",
    )
    with patch.dict(os.environ, data):
        seen = load_job(tmp_path / "job.toml", environment_overrides(data))
    assert (seen.train.steps, seen.train.batch, seen.cluster.workers) == (7, 16, 64)


@pytest.mark.parametrize("flags", [(), ("--jobset",), ("--run-claim", "mine")], ids=" ".join)
def test_worker_0_alone_mounts_the_volume_that_keeps_the_results(
    flags: tuple[str, ...], write_manifest: Write, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text("")
    objects = objects_of(write_manifest("job.toml", *flags))
    claims = [item for item in objects if item["kind"] == "PersistentVolumeClaim"]
    name = "mine" if "mine" in flags else "taihu-runs"
    assert [(claim["metadata"]["name"], claim["spec"]["accessModes"]) for claim in claims] == (
        [] if "mine" in flags else [("taihu-runs", ["ReadWriteOnce"])]
    )
    first, others = (job["template"]["spec"] for job in jobs_of(objects))
    volumes = {volume["name"]: volume for volume in first["volumes"]}
    assert volumes["runs"] == {"name": "runs", "persistentVolumeClaim": {"claimName": name}}
    (mount,) = [each for each in first["containers"][0]["volumeMounts"] if each["name"] == "runs"]
    assert settings_of(objects)["TAIHU_RUN__DIR"] == f"{mount['mountPath']}/{{name}}-{{time}}"
    assert "runs" not in {volume["name"] for volume in others["volumes"]}
    assert all("volumeClaimTemplates" not in item.get("spec", {}) for item in objects)


@pytest.mark.parametrize("flags", [(), ("--jobset",), ("--set", "exchange.kind=ring")], ids=" ".join)
def test_with_a_volume_for_checkpoints_pods_are_started_again(
    flags: tuple[str, ...], write_manifest: Write, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text("[checkpoint]\nrestarts = 9\n")
    objects = objects_of(write_manifest("job.toml", *flags, "--checkpoint-claim", "shared"))
    assert problems(objects) == []
    pods = [job["template"]["spec"] for job in jobs_of(objects)]
    pods += [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "StatefulSet"]
    settings = settings_of(objects)
    for pod in pods:
        assert pod["restartPolicy"] in ("OnFailure", "Always")
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["checkpoints"] == {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "shared"}}
        (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "checkpoints"]
        # A container that ends leaves its last steps there, and whoever is started in its place finds them.
        assert volumes["memory"] == {"name": "memory", "emptyDir": {"medium": "Memory"}}
        assert {"name": "memory", "mountPath": str(SHARED_MEMORY)} in pod["containers"][0]["volumeMounts"]
        assert {"name": "TAIHU_ON_TERM", "value": "leave"} in pod["containers"][0]["env"]
        check_variables({**settings, **{each["name"]: "1" for each in pod["containers"][0]["env"]}})
        assert settings["TAIHU_CHECKPOINT__DIR"].startswith(f"{mount['mountPath']}/")
        assert settings["TAIHU_CHECKPOINT__RESUME"] == "auto"
    # All pods of a job may be lost some times, and whoever replaces worker 0 finds its folder.
    assert all(job["backoffLimit"] >= 6 * job["completions"] for job in jobs_of(objects))
    assert "{time}" not in settings["TAIHU_RUN__DIR"]
    if "--jobset" in flags:
        assert by_kind(objects, "JobSet")["spec"]["failurePolicy"] == {"maxRestarts": 9}


@settings(deadline=None, max_examples=10)
@given(workers=st.integers(2, 500), agents=st.integers(1, 50), cpus=st.integers(1, 64), jobset=st.booleans())
def test_agents_run_all_workers_but_the_first(*, workers: int, agents: int, cpus: int, jobset: bool) -> None:
    given_beside: dict[str, dict[str, object]] = {"cluster": {"workers": workers}}
    job = Job.model_validate(given_beside)
    options = ManifestOptions(agents=agents, jobset=jobset, checkpoint_claim="shared", worker=Resources(cpus, "3Gi"))
    objects = manifest(job, "", given_beside, options)
    assert problems(objects) == []
    first, scaled = jobs_of(objects)
    assert first["completions"] == 1
    # More and fewer pods are one number; the first that ends well ends the Job.
    assert scaled["parallelism"] == agents
    assert "completions" not in scaled
    assert "completionMode" not in scaled
    (container,) = scaled["template"]["spec"]["containers"]
    assert container["args"][0] == "agent"
    own = {each["name"]: each.get("value", "1") for each in container["env"]}
    check_variables({**settings_of(objects), **own})
    assert rank_from_environment(own, "worker") is None
    threads = int(own["TAIHU_CLUSTER__THREADS"])
    assert threads == 1 or threads * -(-(workers - 1) // agents) <= cpus


def test_a_job_that_keeps_nothing_has_no_volume(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[run]\ndir = 'none'\n")
    text = write_manifest("job.toml", "--workers", "1")
    assert "PersistentVolumeClaim" not in text
    assert "TAIHU_RUN__DIR" not in text
    assert problems(objects_of(text)) == []
    assert [job["completions"] for job in jobs_of(objects_of(text))] == [1]


def test_a_jobset_succeeds_with_its_workers(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    objects = objects_of(write_manifest("job.toml", "--jobset"))
    spec = by_kind(objects, "JobSet")["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["first", "worker"]}
    assert [(each["name"], each["template"]["spec"]["completions"]) for each in spec["replicatedJobs"]] == [
        ("server", 2),
        ("first", 1),
        ("worker", 2),
    ]


def test_ranks_come_from_the_completion_index_and_the_ordinal(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    objects = objects_of(write_manifest("job.toml"))
    (server,) = by_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    fields = {
        item["name"]: item["valueFrom"]["fieldRef"]["fieldPath"] for item in server["env"] if "valueFrom" in item
    }
    assert fields == {
        "TAIHU_ADVERTISE": "status.podIP",
        "TAIHU_RANK": "metadata.labels['apps.kubernetes.io/pod-index']",
    }
    assert rank_from_environment({"JOB_COMPLETION_INDEX": "5"}, "worker") == 5
    assert rank_from_environment({"TAIHU_RANK": "1", "JOB_COMPLETION_INDEX": "5"}, "server") == 1


def test_a_pod_may_do_nothing_that_it_needs_not(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    for item in objects_of(write_manifest("job.toml")):
        if item["kind"] in ("Job", "StatefulSet"):
            pod = item["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            assert pod["securityContext"]["runAsNonRoot"]
            assert not pod["automountServiceAccountToken"]
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                # A kubelet has no certificate.
                path = "/readyz" if probe == "readinessProbe" else "/healthz"
                assert container[probe]["httpGet"] == {"path": path, "port": 9400}


@pytest.mark.parametrize(
    ("folder", "flags"), [("base", ()), ("jobset", ("--jobset",)), ("cert-manager", ("--issuer", "taihu"))]
)
def test_the_committed_folders_are_what_the_command_writes(
    folder: str, flags: tuple[str, ...], write_manifest: Write, tmp_path: Path
) -> None:
    job = str(DEPLOY / "job.toml")
    assert "kubectl apply -k out" in write_manifest(job, "--name", "taihu", *flags, "--out", "out")
    written = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert written == {path.name: path.read_text() for path in (DEPLOY / "k8s" / folder).iterdir()}
    assert (
        problems(item for name, text in written.items() if name != "kustomization.yaml" for item in objects_of(text))
        == []
    )


def test_what_is_wrong_with_an_object_is_found(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    text = write_manifest("job.toml", "--jobset")
    for right, wrong in (
        ("completionMode", "completionsMode"),
        ("successPolicy", "succesPolicy"),
        ("scrapeTimeout", "scrapeTimeouts"),
        ("backoffLimit: 0", "backoffLimit: none"),
    ):
        assert right in text
        assert problems(objects_of(text.replace(right, wrong))), wrong


def test_a_model_of_ones_own_goes_along(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text("def build(shape, classes): ...\n")
    (tmp_path / "job.toml").write_text("[model]\nname = 'models/mine.py:build'\n")
    objects = objects_of(write_manifest("job.toml"))
    (files,) = [item["data"] for item in objects if item["metadata"]["name"].endswith("-job")]
    assert files["mine.py"].startswith("def build")
    assert settings_of(objects)["TAIHU_MODEL__NAME"] == "mine.py:build"


def test_a_network_of_caffe_goes_along(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "quick.prototxt").write_text(cifar10_quick())
    (tmp_path / "job.toml").write_text("[model]\nname = 'nets/quick.prototxt'\n")
    objects = objects_of(write_manifest("job.toml"))
    (files,) = [item["data"] for item in objects if item["metadata"]["name"].endswith("-job")]
    assert files["quick.prototxt"] == cifar10_quick()
    assert settings_of(objects)["TAIHU_MODEL__NAME"] == "quick.prototxt"


def test_a_function_of_ones_own_data_goes_along(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def load(path): ...\n")
    (tmp_path / "job.toml").write_text("[data]\nname = './mine.py:load'\npath = 'here'\n")
    objects = objects_of(write_manifest("job.toml", "--data-claim", "numbers"))
    (files,) = [item["data"] for item in objects if item["metadata"]["name"].endswith("-job")]
    assert files["mine.py"].startswith("def load")
    seen = settings_of(objects)
    assert (seen["TAIHU_DATA__NAME"], seen["TAIHU_DATA__PATH"]) == ("mine.py:load", "/data")


def test_data_of_ones_own_lie_in_the_claim(write_manifest: Write, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[data]\nname = '~/sets/train.npz'\n")
    assert (
        settings_of(objects_of(write_manifest("job.toml", "--data-claim", "c")))["TAIHU_DATA__NAME"]
        == "/data/train.npz"
    )
    with pytest.raises(ConfigError, match="give its --data-claim"):
        write_manifest("job.toml")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("missing.toml",), "job file missing.toml: not found"),
        (("data.toml",), "give its --data-claim"),
        (("job.toml", "--worker-memory", "lots"), "size lots: expected a number with a unit"),
        (("job.toml", "--name", "Capital_Letters"), "name 'Capital_Letters': expected at most 40 small letters"),
        (("job.toml", "--set", "train.stepz=1"), "unknown key train.stepz"),
        (
            ("job.toml", "--script", "train.py"),
            "script train.py: no such file; give a file here, or its absolute path",
        ),
        (("job.toml", "--script", "big.py"), "script big.py: 1,000,000 bytes, a ConfigMap holds 900,000"),
        (("job.toml", "--script", "/a.py", "--script-arguments", "'"), "--script-arguments ': No closing quotation"),
        (("job.toml", "--script", "/a.py", "--checkpoint-claim", "c"), "--checkpoint-claim: a script keeps its own"),
        (("job.toml", "--script-arguments", "x"), "--script-arguments: of which script?"),
        (("job.toml", "--trainjob", "--jobset"), "--jobset: a TrainJob makes a JobSet of its own"),
        (("job.toml", "--agents", "2"), "--agents: workers move by checkpoints; give --checkpoint-claim"),
        (("job.toml", "--agents", "2", "--trainjob"), "--trainjob: agents run workers of taihu's own"),
        (("job.toml", *AGENTS, "--workers", "1"), "--agents: worker 0 has a pod of its own"),
        (("job.toml", *AGENTS, "--set", "exchange.kind=ring"), "--agents: workers that exchange with each other"),
        (("job.toml", "--cluster-runtime"), "--cluster-runtime: it is for --trainjob"),
        (("job.toml", "--set", "exchange.kind=ring", "--set", "exchange.returns=gradients"), "nobody would update"),
    ],
)
def test_what_cannot_be_deployed_is_said_in_a_line(
    arguments: tuple[str, ...], expected: str, write_manifest: Write, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text("")
    (tmp_path / "data.toml").write_text("[data]\nname = 'fashion-mnist'\n")
    (tmp_path / "big.py").write_text("#" * 1_000_000)
    with pytest.raises(ConfigError, match=re.escape(expected)):
        write_manifest(*arguments)


@given(st.text(CHARACTERS, max_size=60))
def test_names_of_objects_are_names_of_hosts(name: str) -> None:
    try:
        made = object_name(Job(), name)
    except ConfigError:
        return
    assert len(made) <= 40
    assert made.isascii()
    assert all(c.isdigit() or c.islower() or c == "-" for c in made)
    assert made[0].isalpha()
    assert made[-1] != "-"


def test_the_command_ends_with_2_and_one_line(taihu: Taihu) -> None:
    done = taihu("manifest", "missing.toml")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: job file missing.toml: not found; give the path of a TOML file, or none for the demo"
    ]
