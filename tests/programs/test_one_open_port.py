"""One open port for each server, or worker of a ring, is enough: a firewall that drops all else holds up nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.base.network import ShapedNetwork
from benchmarks.recovery.secured import Ended, on_hosts
from taihu.core.job.environment import without_settings

Taihu = Callable[..., subprocess.CompletedProcess[str]]

PORT = 7070
# Both reports are behind it: after the first one connections are tried.
STEPS = ("--set", "train.steps=40", "--set", "train.evaluate=false")


@pytest.fixture(scope="module")
def hosts() -> Iterator[ShapedNetwork]:
    """Four hosts at 1 Gbit/s."""
    with ShapedNetwork(4, 1e9) as network:
        yield network


def train(network: ShapedNetwork, folder: Path, roles: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
    """Run each of `roles` on the host of its number; returns the results of the workers."""
    results, processes = [], []
    for host, (role, rank, *arguments) in enumerate(roles):
        command = [sys.executable, "-P", "-m", "taihu", role, "--rank", rank, *arguments, *STEPS]
        command += ["--coordinator", f"{network.address(0)}:{PORT}"]
        if role == "worker":
            results.append(folder / f"{rank}.json")
            command += ["--json", str(results[-1]), "--run-dir", "none"]
        with (folder / f"{role}-{rank}.log").open("w") as log:
            processes.append(
                subprocess.Popen(
                    network.command(host, *command), env=without_settings(os.environ), stdout=log, stderr=log
                )
            )
    try:
        codes = [process.wait(timeout=150) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0] * len(roles), [log.read_text() for log in folder.glob("*.log")]
    return [json.loads(path.read_text()) for path in results]


def local_hash(taihu: Taihu, folder: Path, *arguments: str) -> str:
    done = taihu("train", *arguments, *STEPS, "--json", str(folder / "local.json"), "--run-dir", "none")
    assert done.returncode == 0, done.stderr
    return str(json.loads((folder / "local.json").read_text())["parameters_sha256"])


def assert_nothing_but_grpc(results: Sequence[dict[str, Any]], sha256: str) -> None:
    for result in results:
        assert (result["parameters_sha256"], result["path"]) == (sha256, "grpc")


def test_servers_with_one_open_port_and_workers_with_none(hosts: ShapedNetwork, taihu: Taihu, tmp_path: Path) -> None:
    for host in range(4):
        hosts.shut(host, but=PORT if host < 2 else None)
    bind = [("--bind", f"{hosts.address(host)}:{PORT}", "--servers", "2", "--workers", "2") for host in (0, 1)]
    sizes = ("--servers", "2", "--workers", "2")
    roles = [("server", "0", *bind[0]), ("server", "1", *bind[1]), ("worker", "0", *sizes), ("worker", "1", *sizes)]
    results = train(hosts, tmp_path, roles)
    assert_nothing_but_grpc(results, local_hash(taihu, tmp_path, *sizes))
    # Connections were tried, or the firewall was none.
    assert all(hosts.dropped(host) for host in (0, 1))


def test_a_ring_of_workers_with_one_open_port_each(hosts: ShapedNetwork, taihu: Taihu, tmp_path: Path) -> None:
    for host in range(3):
        hosts.shut(host, but=PORT)
    sizes = ("--exchange", "ring", "--workers", "3")
    roles = [("worker", str(host), "--bind", f"{hosts.address(host)}:{PORT}", *sizes) for host in range(3)]
    results = train(hosts, tmp_path, roles)
    assert_nothing_but_grpc(results, local_hash(taihu, tmp_path, *sizes))
    assert all(hosts.dropped(host) for host in range(3))


def test_under_tls_one_open_port_is_enough_too(hosts: ShapedNetwork, taihu: Taihu, tmp_path: Path) -> None:
    """Three hosts, each with the certificates of its own processes alone."""
    job = tmp_path / "job.toml"
    job.write_text("[cluster]\nservers = 2\nworkers = 3\n\n[train]\nsteps = 40\nevaluate = false\n")
    assert on_hosts(hosts, job, tmp_path) == Ended(local_hash(taihu, tmp_path, str(job)), "grpc")
