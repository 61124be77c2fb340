"""Disks of checkpoints that are full, or slow, for a while."""

from __future__ import annotations

import errno
import os
from typing import Final

from taihu.core.chaos.faults import Fault, FaultKind
from taihu.core.chaos.points import Written
from taihu.core.system.threads import Lock
from taihu.core.wire.base.clock import Clock, SystemClock

SLOW_BYTES_PER_SECOND: Final = 1e6
"""The speed of a slow disk."""


class Disk:
    """The disk that one process writes its parts of checkpoints to; any thread may call.

    Args:
        clock: what faults last by, and what a slow disk takes its time from.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._until_s: dict[FaultKind, float] = {}

    def takes(self, fault: Fault) -> bool:
        """Whether `fault` is one of disks; it has begun then."""
        if fault.kind not in (FaultKind.FULL_DISK, FaultKind.SLOW_DISK):
            return False
        with self._lock:
            self._until_s[fault.kind] = self._clock.now() + fault.lasts_s
        return True

    def over(self, file: Written) -> Written:
        """`file` as this disk has it."""
        return _OnDisk(self, file)

    def write(self, size_bytes: int) -> None:
        """Take the time for so many bytes, as it is now.

        Raises:
            OSError: the disk is full.
        """
        if self._is(FaultKind.FULL_DISK):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._is(FaultKind.SLOW_DISK):
            self._clock.sleep(size_bytes / SLOW_BYTES_PER_SECOND)

    def _is(self, kind: FaultKind) -> bool:
        with self._lock:
            return self._clock.now() < self._until_s.get(kind, float("-inf"))


class _OnDisk:
    """A file that is written as its disk allows."""

    def __init__(self, disk: Disk, file: Written) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of `data`, or raise OSError."""
        self._disk.write(len(data))
        return self._file.write(data)
