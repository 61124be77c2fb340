"""Stand-ins for `open` and `io.open`, and for foreign code that opens files by itself."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType
from typing import Any, Final

import safetensors

from taihu.explore.disk import numbers, paths
from taihu.explore.disk.descriptors import FIRST
from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.waiting import Waiting
from taihu.explore.tasks import Ended, Task

__all__ = ["BufferLock", "Chance", "Open", "safe_open"]

_READS: Final = frozenset("rbtU")


class BufferLock:
    """The lock of a file's buffer: it passes no point but where another task has it."""

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._waiting = Waiting("the buffer of a file")

    def __enter__(self) -> None:
        try:
            scheduler = RUNNING()
        except Ended:  # a finalizer, when the run is over
            return
        if not scheduler.is_over:
            self._waiting.wait_until(lambda: self._owner is None or self._owner.process.is_dead)
            self._owner = scheduler.current

    def __exit__(self, *_: object) -> None:
        self._owner = None
        if len(self._waiting):
            self._waiting.wake()


class Chance(Random):
    """`random.Random` as `tempfile` uses it, which draws what a machine draws at random."""

    def choices(self, population: Any, *_: object, k: int = 1, **__: object) -> list[Any]:
        """As `random.Random.choices`, without weights."""
        return RUNNING().secrets.choices(population, k=k)


class Open:
    """`open`: files in memory by Python's own code upon `os`, real ones as they are.

    Args:
        copy: the copy of `_pyio`, which has that code.
    """

    def __init__(self, copy: ModuleType) -> None:
        self._in_memory = copy.open

    def __call__(self, file: Any, mode: str = "r", *others: Any, **more: Any) -> Any:
        """As `open`."""
        number = isinstance(file, int) and file >= FIRST
        if number or more.get("opener") or (not isinstance(file, int) and paths.is_simulated(file)):
            return self._in_memory(file, mode, *others, **more)
        if not isinstance(file, int) and not set(mode) <= _READS and os.fspath(file) != os.devnull:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), file)
        return io.open(file, mode, *others, **more)  # noqa: UP020 - the real one


@contextmanager
def safe_open(path: Any, framework: str, **more: Any) -> Iterator[Any]:
    """`safetensors.safe_open`, which opens files by itself: those in memory as they are at this moment."""
    if not paths.is_simulated(path):
        with safetensors.safe_open(path, framework, **more) as opened:
            yield opened
        return
    number = paths.open_(path, os.O_RDONLY)
    try:
        content = numbers.read(number, numbers.fstat(number).st_size)
    finally:
        numbers.close(number)
    real = os.memfd_create("part")
    try:
        os.write(real, content)
        with safetensors.safe_open(f"/proc/self/fd/{real}", framework, **more) as opened:
            yield opened
    finally:
        os.close(real)
