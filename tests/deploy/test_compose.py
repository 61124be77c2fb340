"""compose.yaml: containers that die are started again, keep their ranks, and find the checkpoints."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
import yaml
from support.tests_deploy import DEPLOY

from taihu.core.job import Job
from taihu.core.job.environment import environment_overrides, resolve_job
from taihu.core.job.security import check_own_certificate, security_of, security_of_onlooker
from taihu.core.job.variables import check_variables
from taihu.core.security.identity import Role

Certs = Callable[..., tuple[int, str, str]]
Object = dict[str, Any]

_VARIABLE: Final = re.compile(r"\$\{(?P<name>[A-Z_]+):-(?P<default>[^}]*)\}")


def services(environment: Mapping[str, str]) -> dict[str, Object]:
    """The services of taihu's own, as compose reads them in this environment."""

    def given(match: re.Match[str]) -> str:
        return environment.get(match["name"]) or match["default"]

    text = (DEPLOY / "compose.yaml").read_text()
    file = yaml.safe_load(_VARIABLE.sub(given, text))
    assert all(volume in file["volumes"] for volume in ("runs", "certificates", "prometheus"))
    return {name: service for name, service in file["services"].items() if name in ("certs", "server", "worker")}


def mounts(service: Object) -> dict[str, str]:
    """The places of volumes and files in the container, by what they are."""
    return dict(volume.split(":")[:2] for volume in service["volumes"])


@pytest.mark.parametrize("environment", [{}, {"TAIHU_SERVERS": "4", "TAIHU_WORKERS": "8", "TAIHU_RUN": "second"}])
def test_containers_that_die_go_on_from_a_volume_that_all_mount(environment: dict[str, str]) -> None:
    name = environment.get("TAIHU_RUN", "run")
    for role, service in services(environment).items():
        if role == "certs":
            continue
        policy, _, times = service["restart"].partition(":")
        # One that has finished is not started again; one that cannot start is not tried for ever.
        assert (policy, int(times) > 0) == ("on-failure", True)
        settings = {key: str(value) for key, value in service["environment"].items()}
        check_variables(settings)
        job = Job.model_validate(environment_overrides(settings))
        assert str(job.checkpoint.dir) == f"/runs/{name}/checkpoints"
        assert job.checkpoint.restarts > 0
        assert PurePosixPath(mounts(service)["runs"]) in PurePosixPath(f"/runs/{name}").parents
        assert settings["TAIHU_ON_TERM"] == "leave"
        assert service["stop_grace_period"] == "60s"
        count = job.cluster.workers if role == "worker" else job.cluster.servers
        assert count == int(service["scale"])
        assert f"dns:{role}" in service["command"]


def test_whoever_takes_the_place_of_worker_0_finds_its_folder() -> None:
    settings = services({})["worker"]["environment"]
    assert settings["TAIHU_RUN__DIR"] == "/runs/run"
    assert PurePosixPath(settings["TAIHU_CHECKPOINT__DIR"]).is_relative_to(settings["TAIHU_RUN__DIR"])


def test_the_image_has_places_for_volumes_that_its_user_may_write() -> None:
    user = services({})["server"]["user"]
    owner, group = user.split(":")
    made = re.findall(rf"install -d -o {owner} -g {group} (.+)", (DEPLOY / "Containerfile").read_text())
    assert made == ["/runs /checkpoints /certificates /authority"]


def await_file(awaited: Path) -> None:
    """The image's entrypoint starts its program once the file is there, and sleeps before that."""
    folder, aside = awaited.parent / "bin", awaited.with_suffix(".aside")
    folder.mkdir(exist_ok=True)
    for name, text in (("taihu", f"ls {awaited}"), ("sleep", f"mv {aside} {awaited}")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    environment = {"PATH": path, "NUMBA_CACHE_DIR": str(folder), "AWAITED_FILE": str(awaited)}
    awaited.rename(aside)
    done = subprocess.run([DEPLOY / "entrypoint"], check=True, env=environment, capture_output=True, text=True)
    assert done.stdout == f"{awaited}\n"


def test_each_container_finds_the_certificate_that_was_made_for_it(
    run_certs: Certs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = services({})
    command = found["certs"]["command"]
    assert (command[0], mounts(found["certs"])["certificates"]) == ("certs", command[-1])
    folder = tmp_path / "made"
    for name in ("certs", "server", "worker"):
        settings = {key: str(value) for key, value in found[name]["environment"].items()}
        for key, value in settings.items():
            monkeypatch.setenv(key, value.replace(command[-1], str(folder)))
        if name == "certs":
            own = mounts(found["certs"])["authority"]
            options = [str(tmp_path / "own") if each == own else each for each in command[2:-1]]
            code, _, error = run_certs(DEPLOY / "job.toml", *options, folder)
            assert code == 0, error
            assert not (folder / "ca-key.pem").exists()
            continue
        assert "certificates:/certificates:ro" in found[name]["volumes"]
        assert "authority" not in mounts(found[name])
        # Podman starts no container again whose dependency has ended, so the image waits for what is made last.
        assert "depends_on" not in found[name]
        awaited = folder / Path(settings["AWAITED_FILE"]).relative_to(command[-1])
        assert awaited.stat().st_mtime_ns == max(path.stat().st_mtime_ns for path in folder.glob("*.pem"))
        await_file(awaited)
        job = resolve_job(DEPLOY / "job.toml", (), {})
        assert job.security.required
        for rank in range(int(found[name]["scale"])):
            role: Role = "server" if name == "server" else "worker"
            check_own_certificate(security_of(job, role, rank), role, rank)
        assert security_of_onlooker(job, "observer", "10.0.0.1:7070").job == "demo"
