"""Trains on hosts of this machine's own, network namespaces with an address each, and compares with a local run.

    python deploy/hosts.py deploy/job.toml --set train.steps=400          (as root)

The servers run on the first host, the workers on the others in turns, started before the servers; all of them get the
same job file. Links are limited to --rate. Says both hashes, and ends with 1 when they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taihu.core.job import load_job, parse_assignments
from taihu.core.settings import ClusterSettings

_PREFIX = "taihu-host"
_SWITCH = "taihu-switch"
_PORT = 7070
_TIMEOUT_S = 300


def main() -> int:
    """Run both; returns 0 when the hashes are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rate", default="1gbit")
    given = parser.parse_args()
    sets = [text for assignment in given.assignments for text in ("--set", assignment)]
    cluster = load_job(given.job, parse_assignments(given.assignments)).cluster
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        local = _local(given.job, sets, folder)
        with _network(given.hosts, given.rate):
            apart = _apart([str(given.job.absolute()), *sets], folder, given.hosts, cluster)
    print(f"one machine   {local}")
    print(f"{given.hosts} hosts       {', '.join(sorted(apart))}")
    print("equal" if apart == {local} else "NOT EQUAL")
    return int(apart != {local})


def _local(job: Path, sets: list[str], folder: Path) -> str:
    result = folder / "local.json"
    command = [
        sys.executable,
        "-P",
        "-m",
        "taihu",
        "train",
        str(job),
        *sets,
        "--json",
        str(result),
        "--run-dir",
        "none",
    ]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S, stdout=subprocess.DEVNULL)
    return str(json.loads(result.read_text())["parameters_sha256"])


def _apart(job: list[str], folder: Path, hosts: int, cluster: ClusterSettings) -> set[str]:
    common = [*job, "--coordinator", f"{_address(1)}:{_PORT}", "--log-format", "json"]
    started: list[tuple[str, subprocess.Popen[bytes], Path]] = []

    def start(host: int, name: str, arguments: list[str]) -> None:
        log = folder / f"{name}.log"
        with log.open("wb") as file:
            command = ["ip", "netns", "exec", f"{_PREFIX}{host}", sys.executable, "-P", "-m", "taihu", *arguments]
            started.append((name, subprocess.Popen(command, stdout=file, stderr=file), log))
        print(f"{name} on {_address(host)}", flush=True)

    for rank in range(cluster.workers):
        result = ["--json", str(folder / f"{rank}.json")]
        start(2 + rank % (hosts - 1), f"worker-{rank}", ["worker", *common, "--rank", str(rank), *result])
    for index in range(cluster.servers):
        start(1, f"server-{index}", ["server", *common, "--index", str(index)])
    try:
        for name, process, log in started:
            if process.wait(timeout=_TIMEOUT_S):
                raise SystemExit(f"{name}: exit code {process.returncode}: {log.read_text().splitlines()[-1]}")
    finally:
        for _, process, _ in started:
            process.kill()
            process.wait()
    results = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(cluster.workers))
    return {str(result["parameters_sha256"]) for result in results}


def _address(host: int) -> str:
    return f"10.97.0.{host}"


@contextmanager
def _network(hosts: int, rate: str) -> Iterator[None]:
    """Namespaces that are joined by a bridge in one more; removed at the end."""
    names = [_SWITCH, *(f"{_PREFIX}{host}" for host in range(1, hosts + 1))]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", _SWITCH, "link", "add", "br0", "type", "bridge")
        _ip("-n", _SWITCH, "link", "set", "br0", "up")
        for host in range(1, hosts + 1):
            _join(host, rate)
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _join(host: int, rate: str) -> None:
    """A cable between a host and the switch; both ends send at most at `rate`."""
    name, port = f"{_PREFIX}{host}", f"port{host}"
    _ip("-n", _SWITCH, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("-n", _SWITCH, "link", "set", port, "master", "br0", "up")
    _ip("-n", name, "addr", "add", f"{_address(host)}/24", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    for namespace, device in ((name, "eth0"), (_SWITCH, port)):
        limit = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        subprocess.run(["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *limit], check=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("error: network namespaces need root")
    sys.exit(main())
