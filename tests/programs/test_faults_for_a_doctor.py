"""`taihu doctor` between hosts: nothing is found where all is well, and each fault that is made on purpose is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.certificates import TestAuthority

from benchmarks.base.network import ShapedNetwork
from taihu.core.job.environment import without_settings
from taihu.core.security.certificates import Validity

PORT = 7070
RATE = "200mbit"
NAME = "coordinator"
LISTENER = Path(__file__).with_name("doctor_host.py")
# Names as they should be everywhere; those of one host may be others.
HOSTS = "127.0.0.1 localhost\n{own} {host}\n{first} " + NAME + "\n"
Findings = list[dict[str, str]]


class Hosts:
    """Three hosts, on which doctors listen; names are known everywhere."""

    def __init__(self, network: ShapedNetwork, folder: Path) -> None:
        self.network = network
        self._folder = folder

    def address(self, host: int) -> str:
        return f"{self.network.address(host)}:{PORT}"

    def command(self, host: int, command: Sequence[str], first: str = ":", hosts: str | None = None) -> list[str]:
        """`command` on `host`, behind the shell's words `first`."""
        names = self._folder / f"hosts{host}{len(list(self._folder.iterdir()))}"
        usual = HOSTS.format(own=self.network.address(host), host=socket.gethostname(), first=self.network.address(0))
        names.write_text(usual if hosts is None else hosts)
        words = f'mount --bind {names} /etc/hosts && {first} && exec "$@"'
        return self.network.command(host, "sh", "-c", words, "sh", *command)

    @contextmanager
    def listening(
        self, *hosts: int, ahead_s: float = 0.0, version: str = "", names: str | None = None
    ) -> Iterator[None]:
        """During the block, doctors listen on these hosts."""
        with ExitStack() as stack:
            processes = []
            for host in hosts:
                command = [sys.executable, "-P", str(LISTENER), self.address(host), str(ahead_s), version]
                environment = {**without_settings(os.environ), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                process = stack.enter_context(
                    subprocess.Popen(
                        self.command(host, command, hosts=names), stdout=subprocess.PIPE, text=True, env=environment
                    )
                )
                stack.callback(process.kill)
                processes.append(process)
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "listening\n"
            yield

    def examine(self, *arguments: str, first: str = ":") -> tuple[int, Findings]:
        """The exit code and the findings of an examination on host 0."""
        command = [sys.executable, "-P", "-m", "taihu", "doctor", *arguments, "--json", "-"]
        done = subprocess.run(
            self.command(0, command, first=first),
            env=without_settings(os.environ),
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout, done.stderr
        results: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, results["findings"]


@pytest.fixture(scope="module")
def network() -> Iterator[ShapedNetwork]:
    with ShapedNetwork(3, 200e6) as shaped:
        yield shaped


@pytest.fixture
def hosts(network: ShapedNetwork, tmp_path: Path) -> Hosts:
    folder = tmp_path / "hosts"
    folder.mkdir()
    return Hosts(network, folder)


def inside(network: ShapedNetwork, host: int, *command: str) -> None:
    words = ["ip", "netns", "exec", network.namespace(host), *command]
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def firewall(network: ShapedNetwork, host: int, *rule: str) -> Iterator[None]:
    """During the block, `host` drops what comes to it and meets `rule`."""
    inside(network, host, "iptables", "-A", "INPUT", *rule, "-j", "DROP")
    try:
        yield
    finally:
        inside(network, host, "iptables", "-F", "INPUT")


def kinds(findings: Findings) -> set[tuple[str, str]]:
    return {(finding["severity"], finding["check"]) for finding in findings}


def test_nothing_is_found_where_all_is_well(hosts: Hosts) -> None:
    peers = f"{hosts.address(1)},{hosts.address(2)}"
    with hosts.listening(1, 2):
        examined = hosts.examine("--peers", peers, "--rate", RATE, "--coordinator", hosts.address(1))
    assert examined == (0, [])


def test_a_link_below_its_rate_by_what_was_promised(hosts: Hosts) -> None:
    with hosts.listening(1):
        code, found = hosts.examine("--peers", hosts.address(1), "--rate", "1gbit")
    assert (code, kinds(found)) == (0, {("slows", "rate")})


def test_a_link_below_the_others(hosts: Hosts) -> None:
    limited = ("rate", "20mbit", "burst", "16kb", "latency", "50ms")
    usual = ("rate", RATE, "burst", "25000b", "latency", "50ms")
    inside(hosts.network, 2, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *limited)
    try:
        with hosts.listening(1, 2):
            code, found = hosts.examine("--peers", f"{hosts.address(1)},{hosts.address(2)}")
    finally:
        inside(hosts.network, 2, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *usual)
    assert (code, kinds(found)) == (0, {("slows", "rate")})
    slow = hosts.address(2)
    assert {finding["where"] for finding in found} == {f"here - {slow}", f"{hosts.address(1)} - {slow}"}


def test_a_closed_port_and_one_that_is_dropped(hosts: Hosts) -> None:
    code, found = hosts.examine("--peers", hosts.address(1))
    assert (code, kinds(found)) == (1, {("fails", "ports")})
    assert "refused" in found[0]["text"]
    with hosts.listening(1), firewall(hosts.network, 1, "-p", "tcp", "--dport", str(PORT)):
        code, found = hosts.examine("--peers", hosts.address(1))
    assert (code, kinds(found)) == (1, {("fails", "ports")})
    assert "no answer within" in found[0]["text"]


def test_a_skewed_clock_and_a_foreign_version(hosts: Hosts) -> None:
    with hosts.listening(1, ahead_s=-30.0, version="0.0.9"):
        code, found = hosts.examine("--peers", hosts.address(1))
    assert (code, kinds(found)) == (1, {("fails", "versions"), ("note", "clock")})
    assert any("30 s behind" in finding["text"] for finding in found)


def test_a_name_that_is_loopback_on_another_host(hosts: Hosts) -> None:
    debian = f"127.0.0.1 localhost\n127.0.1.1 {NAME}\n{hosts.network.address(1)} {socket.gethostname()}\n"
    with hosts.listening(1, names=debian):
        code, found = hosts.examine("--peers", hosts.address(1), "--coordinator", f"{NAME}:{PORT}")
    assert (code, kinds(found)) == (1, {("fails", "names")})
    assert found[0]["where"] == hosts.address(1)


def test_different_mtu(hosts: Hosts) -> None:
    inside(hosts.network, 1, "ip", "link", "set", "dev", "eth0", "mtu", "1300")
    try:
        with hosts.listening(1):
            code, found = hosts.examine("--peers", hosts.address(1))
    finally:
        inside(hosts.network, 1, "ip", "link", "set", "dev", "eth0", "mtu", "1500")
    assert (code, kinds(found)) == (0, {("slows", "mtu")})


def test_large_packets_that_are_lost(hosts: Hosts) -> None:
    with hosts.listening(1), firewall(hosts.network, 1, "-m", "length", "--length", "1400:65535"):
        code, found = hosts.examine("--peers", hosts.address(1))
    assert (code, kinds(found)) == (1, {("fails", "mtu")})


@pytest.mark.parametrize(
    ("first", "arguments", "code", "kind"),
    [
        ("mount -o remount,size=100k /dev/shm", (), 0, ("slows", "shared-memory")),
        ("ulimit -n 80", (), 1, ("fails", "files")),
        (":", ("--set", "cluster.workers=1400", "--set", "train.batch=1"), 1, ("fails", "memory")),
        (":", ("--set", "data.name=/none.npz"), 1, ("fails", "data")),
    ],
)
def test_a_machine_with_too_little(
    hosts: Hosts, first: str, arguments: tuple[str, ...], code: int, kind: tuple[str, str]
) -> None:
    ended, found = hosts.examine(*arguments, first=first)
    assert (ended, kind in kinds(found)) == (code, True), found
    # More processes need more descriptors as well.
    assert (
        kinds(found) - {kind} <= {("fails", "files")}
        if "cluster.workers=1400" in arguments
        else kinds(found) == {kind}
    )


def test_an_expired_certificate(hosts: Hosts, tmp_path: Path) -> None:
    now, day = datetime.now(UTC), timedelta(days=1)
    authority = TestAuthority(tmp_path, Validity(now - 30 * day, now + 30 * day))
    authority.sign("worker/0", validity=Validity(now - 9 * day, now - day))
    old = authority.files("worker/0")
    files = ("--ca", old.ca, "--certificate", old.certificate, "--key", old.key)
    code, found = hosts.examine(*map(str, files))
    assert (code, kinds(found)) == (1, {("fails", "certificates")})
    assert "expired" in found[0]["text"]
