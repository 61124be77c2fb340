"""Failures of a pod: the last line names them, the exit code is 2 or 1, within the configured time."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.daemons import Start, free_port, wait_for
from support.tests_deploy import DEPLOY

Taihu = Callable[..., subprocess.CompletedProcess[str]]

# What a cluster and the pods' ConfigMap set, with a time that a test can wait for. In a cluster a name may be known
# later than it is asked for, so that the time of waiting holds whatever this machine's resolver says.
POD = {
    "KUBERNETES_SERVICE_HOST": "127.0.0.1",
    "TAIHU_BIND": "127.0.0.1:0",
    "TAIHU_METRICS_PORT": "0",
    "TAIHU_CLUSTER__CONNECT_TIMEOUT_S": "1",
    "JOB_COMPLETION_INDEX": "1",
}


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.splitlines()[-1]


def test_a_wrong_argument_of_the_image(taihu: Taihu) -> None:
    done = taihu("wroker", environment=POD)
    assert done.returncode == 2
    assert last_line(done).startswith("error: No such command 'wroker'. Did you mean 'worker'?; see ")


def test_a_missing_job_file(taihu: Taihu) -> None:
    done = taihu("worker", "/etc/taihu/job.toml", environment=POD)
    assert done.returncode == 2
    assert last_line(done).startswith("error: job file /etc/taihu/job.toml: not found")


@pytest.mark.parametrize(("role", "variable"), [("server", "TAIHU_BIND"), ("worker", "TAIHU_BIND")])
def test_a_port_that_is_taken(role: str, variable: str, taihu: Taihu) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        coordinator = f"127.0.0.1:{free_port()}"
        environment = {**POD, variable: address, "TAIHU_CLUSTER__COORDINATOR": coordinator}
        done = taihu(role, environment=environment)
    assert done.returncode == 2
    assert last_line(done).startswith(f"error: cannot listen on {address}: the port is in use")


def test_a_server_that_never_comes(taihu: Taihu) -> None:
    done = taihu("worker", environment={**POD, "TAIHU_CLUSTER__COORDINATOR": f"127.0.0.1:{free_port()}"})
    assert done.returncode == 2
    told = r"error: server 0, coordinator at 127\.0\.0\.1:\d+: no answer within 1 s; .*"
    assert re.fullmatch(told, last_line(done))


def test_a_server_whose_name_is_not_known(taihu: Taihu) -> None:
    done = taihu("worker", environment={**POD, "TAIHU_CLUSTER__COORDINATOR": "server-0.nowhere.invalid:7070"})
    assert done.returncode == 2
    told = "error: server 0, coordinator at server-0.nowhere.invalid:7070: no answer within 1 s"
    assert last_line(done).startswith(told)


def test_servers_of_whom_dns_knows_too_few(taihu: Taihu) -> None:
    done = taihu("worker", environment={**POD, "TAIHU_CLUSTER__COORDINATOR": "dns:nowhere.invalid:7070"})
    assert done.returncode == 2
    assert last_line(done).startswith("error: name nowhere.invalid: 0 addresses after 1 s, expected 2")


def test_the_second_server_that_never_comes(start: Start, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    common = {**POD, "TAIHU_CLUSTER__COORDINATOR": address}
    worker = start("taihu.worker", environment={**common, "TAIHU_CLUSTER__CONNECT_TIMEOUT_S": "60"})
    wait_for(lambda: "metrics" in (tmp_path / "0.log").read_text(), "the worker did not start")
    first = {"JOB_COMPLETION_INDEX": "0", "TAIHU_BIND": address, "TAIHU_CLUSTER__CONNECT_TIMEOUT_S": "5"}
    server = start("taihu.ps_server", environment={**common, **first})
    assert (server.wait(timeout=600), worker.wait(timeout=600)) == (1, 1)
    for log in ("0.log", "1.log"):
        last = (tmp_path / log).read_text().splitlines()[-1]
        assert re.fullmatch(r"error: (.*: )?server 1, .* did not join within 5 s; start all members of the job", last)


def test_a_root_file_system_without_a_writable_place(tmp_path: Path) -> None:
    nowhere = tmp_path / "missing" / "kernels"
    done = subprocess.run(
        ["/bin/sh", DEPLOY / "entrypoint", "version"],
        env={"NUMBA_CACHE_DIR": str(nowhere), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2
    assert last_line(done) == f"error: cannot write {nowhere}; mount a tmpfs or an emptyDir at /tmp"


def test_the_image_starts_what_the_manifests_and_compose_ask_for() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    containerfile = (DEPLOY / "Containerfile").read_text()
    assert "EXPOSE 7070 9400" in containerfile
    user = re.findall(r"^USER (\S+)$", containerfile, re.MULTILINE)
    assert user == [compose["services"]["worker"]["user"]] == ["65532:65532"]
    # PyTorch comes by an extra that somebody asks for.
    assert "ARG EXTRAS=demo" in containerfile
