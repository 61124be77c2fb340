"""Stand-in for the queues of `queue`."""

from __future__ import annotations

from collections import deque
from queue import Empty, Full
from typing import Generic, TypeVar

from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.waiting import Waiting

__all__ = ["Queue", "SimpleQueue"]

T = TypeVar("T")


class SimpleQueue(Generic[T]):
    """`queue.SimpleQueue`; at most `maxsize` items, where that is given."""

    def __init__(self, maxsize: int = 0) -> None:
        self._most = maxsize
        self._items: deque[T] = deque()
        self._getting = Waiting("an item of a queue")
        self._putting = Waiting("room in a queue")

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """As `queue.Queue.put`."""
        _check(timeout, block=block)
        if self._most and not self._putting.wait_until(
            lambda: len(self._items) < self._most, timeout if block else 0.0
        ):
            raise Full
        self._items.append(item)
        self._getting.wake()
        RUNNING().point("put")

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """As `queue.Queue.get`."""
        _check(timeout, block=block)
        RUNNING().point("get")
        if not self._getting.wait_until(lambda: bool(self._items), timeout if block else 0.0):
            raise Empty
        item = self._items.popleft()
        self._putting.wake()
        return item

    def put_nowait(self, item: T) -> None:
        """As `queue.Queue.put_nowait`."""
        self.put(item, block=False)

    def get_nowait(self) -> T:
        """As `queue.Queue.get_nowait`."""
        return self.get(block=False)

    def empty(self) -> bool:
        """As `queue.Queue.empty`."""
        return not self._items

    def qsize(self) -> int:
        """As `queue.Queue.qsize`."""
        return len(self._items)


class Queue(SimpleQueue[T]):
    """`queue.Queue`."""

    def full(self) -> bool:
        """As `queue.Queue.full`."""
        return 0 < self._most <= len(self._items)


def _check(timeout: float | None, *, block: bool) -> None:
    if block and timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
