"""Files by which Linux tells of processes and the machine: those of simulated ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from taihu.explore.disk.disk import Disk
from taihu.explore.scheduler import RUNNING

__all__ = ["MachineFiles"]

_NAMESPACE: Final = 4_026_531_836
_STAT: Final = re.compile(r"/proc/(self|[0-9]+)/stat")
_HELD_KB: Final = 100_000
_MEMORY_KB: Final = 16 << 20


class Made(NamedTuple):
    """A file that is made when it is read: the number of its inode, and what it holds."""

    number: int
    content: bytes


class MachineFiles:
    """The files below `/proc` that are others in a simulated process."""

    @staticmethod
    def find(path: Any) -> Made | None:
        """The file of a path; None where the real one is meant. FileNotFoundError: the process does not live."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if not text.startswith("/proc/"):
            return None
        if (match := _STAT.fullmatch(text)) is not None:
            return _stat(match[1], text)
        found = _MADE.get(text)
        return None if found is None else found(RUNNING().find(Disk))


def _boot_id(disk: Disk) -> Made:
    number = disk.scheduler.seed << 16 | disk.host().number
    return Made(1, f"{UUID(int=number % (1 << 128))}\n".encode())


_MADE: Final[dict[str, Callable[[Disk], Made]]] = {
    "/proc/self/ns/pid": lambda disk: Made(_NAMESPACE + disk.host().number, b""),
    "/proc/self/status": lambda _: Made(1, f"VmHWM:\t{_HELD_KB} kB\nVmRSS:\t{_HELD_KB} kB\n".encode()),
    "/proc/self/clear_refs": lambda _: Made(1, b""),
    "/proc/self/cgroup": lambda _: Made(1, b""),
    "/proc/meminfo": lambda _: Made(1, f"MemTotal: {_MEMORY_KB} kB\nMemAvailable: {_MEMORY_KB} kB\n".encode()),
    "/proc/sys/kernel/random/boot_id": _boot_id,
}


def _stat(whose: str, path: str) -> Made:
    disk = RUNNING().find(Disk)
    pid = disk.pid() if whose == "self" else int(whose)
    if disk.process(pid) is None:
        raise FileNotFoundError(2, os.strerror(2), path)
    # Fields behind the name; the 20th is the start, in ticks since boot.
    fields = ["S", *["0"] * 18, str(pid), *["0"] * 30]
    return Made(1, f"{pid} (taihu) {' '.join(fields)}\n".encode())
