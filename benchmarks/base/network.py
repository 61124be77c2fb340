"""Hosts as network namespaces on one Linux machine, joined by a bridge, every link shaped in both directions.

Needs root and iproute2, and iptables for firewalls. Each host's egress is limited on its own interface and its
ingress on the bridge's port towards it, so a link is full duplex at the given rate.

Hosts' TCP is Reno, of what a namespace may choose the nearest to Linux's usual CUBIC. Where the machine's own is BBR,
its estimates of a limiter's rate let steps of one run at 100 Mbit/s take from 0.24 to 2.3 s, and with Reno 0.29 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

__all__ = ["ShapedNetwork", "last_line", "run_ranks", "run_together", "run_torch_workers"]

_PORT = 7072

_SUBNET = "10.98.0"
_QUEUE_MS = 50
_LARGEST_PACKET_BYTES = 64 << 10
_CONGESTION_CONTROL = "reno"
_SMALLEST_PACKET_BYTES = 1514
_BURST_S = 0.0005
# `ip netns exec` gives a process mounts of its own.
_WITH_OWN_MEMORY = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'


class ShapedNetwork:
    """`hosts` hosts named 0, 1, ... with `rate_bits` per second each; a context manager."""

    def __init__(self, hosts: int, rate_bits: float) -> None:
        self.hosts = hosts
        self._rate_bits = rate_bits
        self._prefix = f"th{os.getpid()}"
        self._switch = f"{self._prefix}sw"

    def __enter__(self) -> Self:
        self._ip("netns", "add", self._switch)
        self._ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "br0", "up")
        for host in range(self.hosts):
            self._add_host(host)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in (*map(self.namespace, range(self.hosts)), self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)  # noqa: S607

    def address(self, host: int) -> str:
        """The host's IPv4 address."""
        return f"{_SUBNET}.{host + 1}"

    def command(self, host: int, *command: str) -> list[str]:
        """`command` as it runs on `host`, which shares no memory with others."""
        return ["ip", "netns", "exec", self.namespace(host), "sh", "-c", _WITH_OWN_MEMORY, "sh", *command]

    def namespace(self, host: int) -> str:
        """The name of a host's network namespace."""
        return f"{self._prefix}h{host}"

    def shut(self, host: int, *, but: int | None) -> None:
        """Drop, without a word, whatever comes to `host` from others, but answers and what goes to the port `but`."""
        rules = [
            "-F INPUT",
            "-Z INPUT",
            "-P INPUT DROP",
            "-A INPUT -i lo -j ACCEPT",
            "-A INPUT -p tcp ! --syn -j ACCEPT",
        ]
        rules += [] if but is None else [f"-A INPUT -p tcp --dport {but} -j ACCEPT"]
        for rule in rules:
            self._iptables(host, *rule.split())

    def dropped(self, host: int) -> int:
        """The number of packets that the firewall of `host` has dropped since it was shut."""
        # Chain INPUT (policy DROP 3 packets, 180 bytes)
        return int(self._iptables(host, "-nvxL", "INPUT").split()[4])

    def _iptables(self, host: int, *arguments: str) -> str:
        command = ["ip", "netns", "exec", self.namespace(host), "iptables", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @property
    def _packet_bytes(self) -> int:
        """The largest piece that the kernel hands to a link at once.

        A limiter lets twice that pass at full speed after a pause, which a real link does not: it must be little.
        """
        return round(min(max(self._rate_bits / 8 * _BURST_S, _SMALLEST_PACKET_BYTES), _LARGEST_PACKET_BYTES))

    def _add_host(self, host: int) -> None:
        namespace, port = self.namespace(host), f"port{host}"
        self._ip("netns", "add", namespace)
        self._ip("-n", namespace, "link", "set", "lo", "up")
        chosen = f"net.ipv4.tcp_congestion_control={_CONGESTION_CONTROL}"
        self._ip("netns", "exec", namespace, "sysctl", "-qw", chosen)
        veth = ("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._ip("-n", self._switch, *veth)
        self._ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        self._ip("-n", namespace, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for where, device in ((namespace, "eth0"), (self._switch, port)):
            self._ip("-n", where, "link", "set", device, "gso_max_size", str(self._packet_bytes))
        self._ip("-n", namespace, "link", "set", "eth0", "up", "txqueuelen", "10000")
        self._shape(namespace, "eth0")
        self._shape(self._switch, port)

    def _shape(self, namespace: str, device: str) -> None:
        shape = f"rate {self._rate_bits:.0f}bit burst {2 * self._packet_bytes}b latency {_QUEUE_MS}ms"
        words = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *shape.split()]
        subprocess.run(words, check=True)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)  # noqa: S607


def run_ranks(command: list[str], ranks: int, rate_bits: float, result: Path, first: Sequence[str] = ()) -> None:
    """Run a bench between ranks, each on a host of its own; rank 0 writes `result`.

    `command` takes `--rank`, `--coordinator` and `--json`; rank 0 gets the arguments `first` too.
    """
    with ShapedNetwork(ranks, rate_bits) as network:
        address = f"{network.address(0)}:{_PORT}"
        commands = [
            network.command(rank, *command, "--rank", str(rank), "--coordinator", address) for rank in range(ranks)
        ]
        commands[0] += ["--json", str(result), *first]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0"}
        run_together(commands, environment)


def run_torch_workers(
    network: ShapedNetwork,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    shown: bool = False,
    has_server: bool = False,
) -> None:
    """Run a worker of a PyTorch script on each host, by the environment that torchrun gives, one thread each.

    taihu's go around a ring, unless `environment` says otherwise; or through a server on the last host.
    """
    workers = network.hosts - has_server
    of_server = {
        "TAIHU_EXCHANGE__KIND": "server",
        "TAIHU_EXCHANGE__RETURNS": "script",
        "TAIHU_CLUSTER__SERVERS": "1",
        "TAIHU_CLUSTER__WORKERS": str(workers),
    }
    coordinator = f"{network.address(workers if has_server else 0)}:{_PORT}"
    own = {
        "MASTER_ADDR": network.address(0),
        "MASTER_PORT": "29511",
        "WORLD_SIZE": str(workers),
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "TAIHU_CLUSTER__COORDINATOR": coordinator,
        **(of_server if has_server else {"TAIHU_EXCHANGE__KIND": "ring"}),
        **environment,
    }
    commands = [
        network.command(rank, "env", f"RANK={rank}", f"TAIHU_RANK={rank}", *command) for rank in range(workers)
    ]
    if has_server:
        commands.append(network.command(workers, sys.executable, "-P", "-m", "taihu.ps_server", "--rank", "0"))
    run_together(commands, {**os.environ, **own}, shown=shown)


def run_together(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str] | None = None, *, shown: bool = False
) -> None:
    """Run all commands at the same time until the last one has ended; exits with their last words if one fails.

    `shown` lets through what they write to standard output.
    """
    output = None if shown else subprocess.DEVNULL
    with ExitStack() as files:
        said = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        processes = [
            subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
            for command, errors in zip(commands, said, strict=True)
        ]
        try:
            codes = [process.wait() for process in processes]
        finally:
            for process in processes:  # which an interrupt has not reached
                process.kill()
        if any(codes):
            raise SystemExit(f"error: a role failed: exit codes {codes}\n" + "\n".join(map(last_line, said)))


def last_line(errors: IO[str]) -> str:
    """The last words of a process that wrote to `errors`."""
    errors.seek(0)
    return (errors.read().strip().splitlines() or ["(said nothing)"])[-1]
