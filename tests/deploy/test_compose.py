"""compose.yaml: containers that die are started again, keep their ranks, and find the checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import pytest
import yaml
from support.tests_deploy import DEPLOY

from taihu.job import Job
from taihu.job.environment import environment_overrides
from taihu.job.variables import check_variables

Object = dict[str, Any]

_VARIABLE: Final = re.compile(r"\$\{(?P<name>[A-Z_]+):-(?P<default>[^}]*)\}")


def services(environment: Mapping[str, str]) -> dict[str, Object]:
    """The services of taihu's own, as compose reads them in this environment."""

    def given(match: re.Match[str]) -> str:
        return environment.get(match["name"]) or match["default"]

    text = (DEPLOY / "compose.yaml").read_text()
    file = yaml.safe_load(_VARIABLE.sub(given, text))
    assert all(volume in file["volumes"] for volume in ("runs", "prometheus"))
    return {name: service for name, service in file["services"].items() if name in ("server", "worker")}


def mounts(service: Object) -> dict[str, str]:
    """The places of volumes and files in the container, by what they are."""
    return dict(volume.split(":")[:2] for volume in service["volumes"])


@pytest.mark.parametrize("environment", [{}, {"TAIHU_SERVERS": "4", "TAIHU_WORKERS": "8", "TAIHU_RUN": "second"}])
def test_containers_that_die_go_on_from_a_volume_that_all_mount(environment: dict[str, str]) -> None:
    name = environment.get("TAIHU_RUN", "run")
    for role, service in services(environment).items():
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
    assert made == ["/runs /checkpoints"]
