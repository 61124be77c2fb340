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

from benchmarks.network import ShapedNetwork
from taihu.job.environment import without_settings

Taihu = Callable[..., subprocess.CompletedProcess[str]]

PORT = 7070
# Both reports are behind it: after the first one connections are tried.
STEPS = ("--set", "train.steps=40", "--set", "train.evaluate=false")


@pytest.fixture(scope="module")
def hosts() -> Iterator[ShapedNetwork]:
    """Four hosts at 1 Gbit/s."""
    with ShapedNetwork(4, 1e9) as network:
        yield network


def shut(network: ShapedNetwork, host: int, *, but: int | None) -> None:
    """Drop, without a word, whatever comes to `host` from others, but answers and what goes to the port `but`."""
    rules = ["-F INPUT", "-P INPUT DROP", "-A INPUT -i lo -j ACCEPT", "-A INPUT -p tcp ! --syn -j ACCEPT"]
    rules += [] if but is None else [f"-A INPUT -p tcp --dport {but} -j ACCEPT"]
    for rule in rules:
        iptables(network, host, *rule.split())


def iptables(network: ShapedNetwork, host: int, *arguments: str) -> str:
    """Run `iptables` on `host`; returns what it prints."""
    command = ["ip", "netns", "exec", network.namespace(host), "iptables", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def dropped(network: ShapedNetwork, host: int) -> int:
    """The number of packets that the firewall of `host` has dropped."""
    # Chain INPUT (policy DROP 3 packets, 180 bytes)
    return int(iptables(network, host, "-nvxL", "INPUT").split()[4])


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
        shut(hosts, host, but=PORT if host < 2 else None)
    bind = [("--bind", f"{hosts.address(host)}:{PORT}", "--servers", "2", "--workers", "2") for host in (0, 1)]
    sizes = ("--servers", "2", "--workers", "2")
    roles = [("server", "0", *bind[0]), ("server", "1", *bind[1]), ("worker", "0", *sizes), ("worker", "1", *sizes)]
    results = train(hosts, tmp_path, roles)
    assert_nothing_but_grpc(results, local_hash(taihu, tmp_path, *sizes))
    # Connections were tried, or the firewall was none.
    assert all(dropped(hosts, host) for host in (0, 1))


def test_a_ring_of_workers_with_one_open_port_each(hosts: ShapedNetwork, taihu: Taihu, tmp_path: Path) -> None:
    for host in range(3):
        shut(hosts, host, but=PORT)
    sizes = ("--exchange", "ring", "--workers", "3")
    roles = [("worker", str(host), "--bind", f"{hosts.address(host)}:{PORT}", *sizes) for host in range(3)]
    results = train(hosts, tmp_path, roles)
    assert_nothing_but_grpc(results, local_hash(taihu, tmp_path, *sizes))
    assert all(dropped(hosts, host) for host in range(3))
