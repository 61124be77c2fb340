"""Faults of simulated disks: slow, full, read-only, failing, for some processes and for a while. Pure."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["DiskFault", "DiskFaults", "FaultyKind"]

FaultyKind = Literal["slow", "full", "read-only", "failing"]
"""The states of a faulty disk."""

_CHANGING: Final = frozenset({"open to write", "write", "allocate", "rename", "unlink", "mkdir", "rmdir", "chmod"})
_GROWING: Final = frozenset({"create", "mkdir"})


@dataclass
class DiskFault:
    """A fault.

    Attributes:
        kind: of it.
        whose: of which member or host it hits the processes; everybody's where it is empty.
        until_s: virtual time of its end.
        seconds: that each operation takes on a slow disk.
        room: bytes that still find room on a full one.
        operations: that fail; all where there are none.
        below: the paths that it hits begin so.
    """

    kind: FaultyKind
    whose: str = ""
    until_s: float = math.inf
    seconds: float = 0.0
    room: int = 0
    operations: frozenset[str] = frozenset()
    below: str = ""

    def hits(self, member: str, host: str, path: str, now_s: float) -> bool:
        """Whether it hits what a member's process on a host does with a file now."""
        return now_s < self.until_s and self.whose in ("", member, host) and path.startswith(self.below)


class DiskFaults:
    """The faults of the disks of a run.

    Args:
        now: the virtual time, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._faults: list[DiskFault] = []

    @property
    def any(self) -> bool:
        """Whether there are faults at all."""
        return bool(self._faults)

    def begin(self, fault: DiskFault) -> None:
        """Let a fault begin."""
        self._faults.append(fault)

    def end(self, whose: str = "") -> None:
        """End the faults of a member or host, or all."""
        self._faults = [each for each in self._faults if whose not in ("", each.whose)]

    def found(self, kind: FaultyKind, member: str, host: str, path: str) -> list[DiskFault]:
        """The faults of a kind that hit what a member's process on a host does with a file now."""
        if not self._faults:
            return []
        now_s = self._now()
        return [each for each in self._faults if each.kind == kind and each.hits(member, host, path, now_s)]

    def check(self, operation: str, member: str, host: str, path: str) -> None:
        """Raise OSError where a disk is not such that the operation succeeds."""
        if not self._faults:
            return
        for fault in self.found("failing", member, host, path):
            if not fault.operations or operation in fault.operations:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if operation in _CHANGING | _GROWING and self.found("read-only", member, host, path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        if operation in _GROWING and any(not each.room for each in self.found("full", member, host, path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def take_room(self, wanted: int, member: str, host: str, path: str) -> int:
        """Take so many bytes of what is free, or those that are left; how many it took."""
        full = self.found("full", member, host, path)
        taken = min([wanted, *(each.room for each in full)])
        for each in full:
            each.room -= taken
        return taken

    def delay_s(self, member: str, host: str, path: str) -> float:
        """The virtual seconds that an operation takes."""
        return sum(each.seconds for each in self.found("slow", member, host, path))
