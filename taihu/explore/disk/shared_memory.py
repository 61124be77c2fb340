"""Stand-ins for memory that processes of a host share: `mmap`, and the waits for counters in it."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.explore.disk.descriptors import FIRST, Descriptors
from taihu.explore.disk.storage import File
from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.waiting import Waiting
from taihu.kernels import futex

__all__ = ["WordsInMemory", "map_file", "publish", "wait_until"]

Words = NDArray[np.int64]


def map_file(number: int, length: int, *others: Any, **more: Any) -> mmap.mmap:
    """`mmap.mmap`: of a file in memory the memory itself, which all processes share that map it."""
    if number < FIRST:
        return mmap.mmap(number, length, *others, **more)
    node = RUNNING().find(Descriptors).node(number)
    if not isinstance(node, File) or length > node.size:
        raise ValueError("mmap length is greater than file size")
    return node.map()


class WordsInMemory:
    """Those that wait for words of memory; `scheduler.provide` it."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}

    def at(self, words: Words, index: int) -> Waiting:
        """Those who wait for a word."""
        return self._waiting.setdefault(words.ctypes.data + 8 * index, Waiting("a word of shared memory"))


def publish(words: Words, index: int, value: int) -> int:
    """`taihu.kernels.futex.publish`."""
    scheduler = RUNNING()
    scheduler.point("publish")
    words[index] = value
    waiting = scheduler.find(WordsInMemory).at(words, index)
    woken = len(waiting)
    waiting.wake()
    return woken


def _within(holds: Callable[[], bool], waiting: Waiting) -> bool:
    scheduler = RUNNING()
    scheduler.point("word")
    # A wake may be any other's, or a signal: the one that waits looks again.
    return holds() or (waiting.wait(scheduler.now + futex.WAIT_LIMIT_S) and holds()) or holds()


def wait_until(words: Words, index: int, value: int) -> bool:
    """`taihu.kernels.futex.wait_until` and `wait_awake_until`."""
    return _within(lambda: bool(words[index] >= value), RUNNING().find(WordsInMemory).at(words, index))
