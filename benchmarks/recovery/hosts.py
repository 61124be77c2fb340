"""Hosts with links, and memory that outlives the processes of each: network namespaces. Needs root and iproute2.

Where hosts are to have fewer cores than this machine, a control group bounds what their processes use.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Final, Self

from benchmarks.base.network import ShapedNetwork

__all__ = ["Hosts"]

_GROUPS: Final = Path("/sys/fs/cgroup")
_PERIOD_US: Final = 20_000
_ENDS_S: Final = 10.0
_LOOK_S: Final = 0.05
_IN_GROUP: Final = 'echo $$ > "$0" && exec "$@"'
_WITH_MEMORY: Final = 'mount --bind "$0" /dev/shm && exec "$@"'


class Hosts:
    """Hosts with links of `rate_bits`; a context manager, which kills what still runs on them.

    Args:
        count: of hosts.
        rate_bits: of each link, bits per second.
        cores: that each may use, a part of one or several; those that are not named may use all.
    """

    def __init__(self, count: int, rate_bits: float, cores: Mapping[int, float] = MappingProxyType({})) -> None:
        self.count = count
        self._cores = cores
        self._network = ShapedNetwork(count, rate_bits)
        self._stack = ExitStack()
        self._memories: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._stack.enter_context(self._network)
        for _ in range(self.count):
            memory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
            self._stack.callback(subprocess.run, ["umount", str(memory)], check=False)
            self._memories.append(memory)
            self._mount(memory)
        for host in self._cores:
            group = self._group(host)
            group.mkdir()
            self._stack.callback(_remove, group)
            self.give_cores(host, self._cores[host])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._stack.close()

    def address(self, host: int) -> str:
        """The address of a host."""
        return self._network.address(host)

    def start(self, host: int, words: Sequence[str], log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Run a command there."""
        # A namespace has another view of /sys: who is to be bounded joins its group before.
        bounded = ["sh", "-c", _IN_GROUP, str(self._group(host) / "cgroup.procs")] if host in self._cores else []
        inside = [*bounded, "ip", "netns", "exec", self._network.namespace(host), "sh", "-c", _WITH_MEMORY]
        process = subprocess.Popen(
            [*inside, str(self._memories[host]), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if log is None else log,
            env=os.environ,
        )
        self._processes.append(process)
        return process

    def cut(self, host: int, *, off: bool) -> None:
        """Take the link of a host away, without a word to anybody, or give it back."""
        state = "down" if off else "up"
        words = ["ip", "-n", self._network.namespace(host), "link", "set", "eth0", state]
        subprocess.run(words, check=True)

    def forget(self, host: int) -> None:
        """Empty the memory of a host, of which nothing runs any more: it has lost its power."""
        memory = self._memories[host]
        subprocess.run(["umount", "-l", str(memory)], check=True)  # noqa: S607
        self._mount(memory)

    def give_cores(self, host: int, cores: float) -> None:
        """Have the processes of a host use so many cores from now on."""
        quota, period = round(cores * _PERIOD_US), _PERIOD_US
        if (_GROUPS / "cgroup.controllers").exists():
            (self._group(host) / "cpu.max").write_text(f"{quota} {period}")
        else:
            (self._group(host) / "cpu.cfs_period_us").write_text(f"{period}")
            (self._group(host) / "cpu.cfs_quota_us").write_text(f"{quota}")

    def _group(self, host: int) -> Path:
        above = _GROUPS if (_GROUPS / "cgroup.controllers").exists() else _GROUPS / "cpu"
        return above / f"taihu-{os.getpid()}-{host}"

    def _mount(self, memory: Path) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(memory)], check=True)  # noqa: S607


def _remove(group: Path) -> None:
    """Remove a control group as soon as the last of its processes is gone."""
    deadline = time.monotonic() + _ENDS_S
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    group.rmdir()
