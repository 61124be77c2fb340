"""Hosts with OpenSSH's server: network namespaces with addresses and memory of their own, which share all files."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.base.network import ShapedNetwork
from taihu.core.job.environment import without_settings

__all__ = ["SshHosts"]

_SERVER = """
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PrintMotd no
{more}
"""
_CLIENT = """
Host {names}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    ControlMaster no
"""
_BEGIN_S = 20.0


class SshHosts:
    """`count` hosts `host1`, `host2` ...; a context manager. ssh has no key of `stranger`, and nobody is at `gone`.

    Needs root, iproute2, iptables, openssh-server and openssh-client.

    Args:
        count: number of hosts.
        folder: an empty folder for keys and configuration, which are made for this alone.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self._network = ShapedNetwork(count, 1e9)
        self._count = count
        self._folder = folder
        self._servers: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._network.__enter__()
        for key in ("host_key", "user_key"):
            made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self._folder / key)]
            subprocess.run(made, check=True)
        self._write_client()
        Path("/run/sshd").mkdir(exist_ok=True)
        for number in range(1, self._count + 1):
            self.begin(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in list(self._servers):
            self.end(number)
        self._network.__exit__(kind, value, trace)

    @property
    def ssh(self) -> str:
        """The client that knows these hosts."""
        return f"ssh -F {self._folder / 'ssh_config'}"

    def address(self, number: int) -> str:
        """The IPv4 address of a host."""
        return self._network.address(number - 1)

    def begin(self, number: int, more: str = "", hidden: Path | None = None) -> None:
        """Start the server of a host with `more` settings, with a folder that is `hidden` by an empty package."""
        file = self._folder / f"sshd_config_{number}"
        file.write_text(_SERVER.format(address=self.address(number), folder=self._folder, more=more))
        command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(file)]
        if hidden is not None:
            hide = 'mount -t tmpfs none "$0" && touch "$0/__init__.py" && exec "$@"'
            command = ["sh", "-c", hide, str(hidden), *command]
        with (self._folder / f"sshd_{number}.log").open("ab") as log:
            self._servers[number] = subprocess.Popen(
                self._network.command(number - 1, *command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _BEGIN_S
        attempt = self._inside(1, *shlex.split(self.ssh), f"host{number}", "true")
        while "Connection refused" in subprocess.run(attempt, check=False, capture_output=True, text=True).stderr:
            assert time.monotonic() < deadline, (self._folder / f"sshd_{number}.log").read_text()
            time.sleep(0.05)

    def end(self, number: int) -> None:
        """End the server of a host; connections that it has stay."""
        server = self._servers.pop(number)
        server.kill()
        server.wait()

    def shut(self, number: int, *, but: Sequence[int]) -> None:
        """Drop whatever comes to a host, but answers and what goes to these ports."""
        self._network.shut(number - 1, but=None)
        for port in but:
            self._iptables(number, "-A", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "ACCEPT")

    def open(self) -> None:
        """Let all come to all hosts again."""
        for number in range(1, self._count + 1):
            self._iptables(number, "-P", "INPUT", "ACCEPT")
            self._iptables(number, "-F", "INPUT")

    def connections(self, number: int) -> list[int]:
        """The processes of a host's server that each have a connection."""
        names = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in self.pids(number)}
        return [pid for pid, name in names.items() if name.startswith("sshd: ") and "[listener]" not in name]

    def pids(self, number: int) -> list[int]:
        """The processes on a host, its server's too."""
        command = ["ip", "netns", "pids", self._network.namespace(number - 1)]
        return [*map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())]

    def start(
        self, folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """`taihu launch` in `folder`, called on the first host."""
        return subprocess.Popen(
            self._inside(1, str(Path(sys.executable).with_name("taihu")), "launch", "--ssh", self.ssh, *arguments),
            cwd=folder,
            env={**without_settings(os.environ), **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, *arguments: str, timeout_s: float = 120) -> tuple[int, str, str]:
        """Exit code, output and error output of `taihu launch`."""
        with self.start(folder, *arguments) as process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            finally:
                process.kill()
        return process.returncode, output, errors

    def _inside(self, number: int, *command: str) -> Sequence[str]:
        return self._network.command(number - 1, *command)

    def _iptables(self, number: int, *arguments: str) -> None:
        subprocess.run(self._inside(number, "iptables", *arguments), check=True)

    def _write_client(self) -> None:
        key = (self._folder / "host_key.pub").read_text()
        numbers = range(1, self._count + 1)
        known = "".join(f"host{number},{self.address(number)} {key}" for number in numbers)
        (self._folder / "known_hosts").write_text(known)
        names = " ".join(f"host{number}" for number in numbers)
        config = _CLIENT.format(names=names, folder=self._folder)
        config += "".join(f"Host host{number}\n    HostName {self.address(number)}\n" for number in numbers)
        own = f"    IdentityFile {self._folder}/user_key\n    UserKnownHostsFile {self._folder}/known_hosts\n"
        config += f"Host stranger\n    HostName {self.address(1)}\n    HostKeyAlias stranger\n{own}"
        config += f"Host gone\n    HostName {self.address(200)}\n"
        (self._folder / "ssh_config").write_text(config)
