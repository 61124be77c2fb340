"""Calls that wait for their instant of a virtual clock. Pure: nothing of the real time is looked at."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class EventQueue:
    """The virtual clock of a simulation; of calls for one instant the first that was put comes first.

    Attributes:
        now: seconds since the beginning.
        handled: the number of calls so far.
        is_over: set by whoever wants `run` to return.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.handled = 0
        self.is_over = False
        self._put = 0
        self._waiting: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Have `call(*args)` called at the instant `when`, which is not before now."""
        heappush(self._waiting, (when, self._put, call, args))
        self._put += 1

    def run(self) -> None:
        """Make all calls in their order, those that they put too, until none is left or it is over."""
        waiting = self._waiting
        while waiting and not self.is_over:
            self.now, _, call, args = heappop(waiting)
            self.handled += 1
            call(*args)


class WorkQueue:
    """Something that does one piece of work after another: a port, a thread, a memory.

    Attributes:
        free: the instant at which all that was booked so far is done.
        busy: seconds of all work so far.
    """

    __slots__ = ("busy", "free")

    def __init__(self) -> None:
        self.free = 0.0
        self.busy = 0.0

    def book(self, start: float, seconds: float) -> float:
        """Add work that can be begun at `start`; returns the instant at which it is done."""
        self.busy += seconds
        self.free = (start if start > self.free else self.free) + seconds
        return self.free
