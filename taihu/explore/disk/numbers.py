"""Calls of `os` that take numbers of open files: those of a disk in memory, and real ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from taihu.explore.disk.descriptors import FIRST, Descriptors
from taihu.explore.scheduler import RUNNING
from taihu.explore.tasks import Ended

__all__ = [
    "close",
    "fstat",
    "fsync",
    "ftruncate",
    "isatty",
    "lseek",
    "posix_fallocate",
    "pread",
    "preadv",
    "pwrite",
    "read",
    "set_inheritable",
    "write",
]


def _descriptors() -> Descriptors:
    return RUNNING().find(Descriptors)


def _is_ours(number: int) -> bool:
    return number >= FIRST


def _is_over() -> bool:
    """Whether no run goes on: finalizers of what it has left call then."""
    try:
        return RUNNING().is_over
    except Ended:
        return True


def close(number: int) -> None:
    """`os.close`."""
    if not _is_ours(number):
        os.close(number)
    elif not _is_over():
        _descriptors().close(number)


def read(number: int, size: int) -> bytes:
    """`os.read`."""
    return _descriptors().read(number, size) if _is_ours(number) else os.read(number, size)


def write(number: int, data: Any) -> int:
    """`os.write`; what a process that has ended had in its buffers is lost."""
    if not _is_ours(number):
        return os.write(number, data)
    plain = memoryview(data).tobytes()
    return len(plain) if _is_over() else _descriptors().write(number, plain)


def pread(number: int, size: int, offset: int) -> bytes:
    """`os.pread`."""
    return _descriptors().pread(number, size, offset) if _is_ours(number) else os.pread(number, size, offset)


def preadv(number: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
    """`os.preadv`."""
    if not _is_ours(number):
        return os.preadv(number, buffers, offset, flags)
    count = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        data = _descriptors().pread(number, len(view), offset + count)
        view[: len(data)] = data
        count += len(data)
        if len(data) < len(view):
            break
    return count


def pwrite(number: int, data: Any, offset: int) -> int:
    """`os.pwrite`."""
    if not _is_ours(number):
        return os.pwrite(number, data, offset)
    return _descriptors().pwrite(number, memoryview(data).tobytes(), offset)


def lseek(number: int, position: int, whence: int) -> int:
    """`os.lseek`."""
    return _descriptors().seek(number, position, whence) if _is_ours(number) else os.lseek(number, position, whence)


def ftruncate(number: int, length: int) -> None:
    """`os.ftruncate`."""
    if _is_ours(number):
        _descriptors().truncate(number, length)
    else:
        os.ftruncate(number, length)


def posix_fallocate(number: int, offset: int, size: int) -> None:
    """`os.posix_fallocate`."""
    if _is_ours(number):
        _descriptors().allocate(number, offset, size)
    else:
        os.posix_fallocate(number, offset, size)


def fsync(number: Any) -> None:
    """`os.fsync` and `os.fdatasync`; what is real is not changed, and so it is durable."""
    number = number if isinstance(number, int) else number.fileno()
    if _is_ours(number):
        _descriptors().synchronize(number)


def fstat(number: int) -> os.stat_result:
    """`os.fstat`."""
    return _descriptors().status(number) if _is_ours(number) else os.fstat(number)


def isatty(number: int) -> bool:
    """`os.isatty`."""
    return not _is_ours(number) and os.isatty(number)


def set_inheritable(number: int, inheritable: bool) -> None:
    """`os.set_inheritable`."""
    if not _is_ours(number):
        os.set_inheritable(number, inheritable)
