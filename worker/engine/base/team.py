"""The threads of one process that compute a layer together."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.core.system.threads import spawn
from taihu.kernels.futex import publish, wait_awake_until

Task = Callable[..., object]


def _rest(lane: int) -> None:
    """Do nothing."""


@dataclass
class _Orders:
    """The members' common state; `rounds` holds the number of the latest round begun, and of that ended by each."""

    rounds: NDArray[np.int64]
    work: Callable[[int], object] = _rest
    failures: list[BaseException] = field(default_factory=list)
    ended: bool = False


class Team:
    """Calls a function with parts of its work on several threads at a time; the caller's is one of them.

    Members wait for half a millisecond awake and then asleep: within a step they are awake, and an idle team costs
    nothing.
    Only one thread may call `run`. The threads end with the object.

    Args:
        threads: how many, at least 1; with 1 there is no thread but the caller's.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"a team of {threads} threads: expected at least 1")
        self._threads = threads
        self._round = 0
        # A cache line for each, so that members do not slow each other down.
        self._orders = _Orders(np.zeros(8 * threads, np.int64))
        for lane in range(1, threads):
            spawn(f"compute-{lane}", _serve, self._orders, lane)
        if threads > 1:
            weakref.finalize(self, _end, self._orders)

    @property
    def threads(self) -> int:
        """The number of threads, the caller's included."""
        return self._threads

    def run(self, task: Task, parts: int, *arguments: Any) -> None:
        """Call `task(*arguments, first, last, lane)` for ranges that together are 0..parts-1, and wait for all.

        Args:
            task: releases the GIL for most of its time; the ranges must not depend on each other.
            parts: how many there are; the ranges differ by one part at most.
            arguments: passed on.

        Raises:
            BaseException: what a task raised.
        """
        lanes = min(self._threads, parts)
        if lanes <= 1:
            task(*arguments, 0, parts, 0)
            return

        def work(lane: int) -> None:
            if lane < lanes:
                task(*arguments, lane * parts // lanes, (lane + 1) * parts // lanes, lane)

        orders = self._orders
        orders.work = work
        self._round += 1
        publish(orders.rounds, 0, self._round)
        try:
            work(0)
        finally:
            for lane in range(1, self._threads):
                while not wait_awake_until(orders.rounds, 8 * lane, self._round):
                    pass
            # Arguments are of the memory of a step, which may be given back.
            orders.work = _rest
        if orders.failures:
            raise orders.failures.pop()


class IdleTeam(Team):
    """A team of `threads` that is asked and does nothing; it has none."""

    def __init__(self, threads: int) -> None:
        super().__init__(1)
        self._asked_for = threads

    @property
    @override
    def threads(self) -> int:
        return self._asked_for

    @override
    def run(self, task: Task, parts: int, *arguments: Any) -> None:
        return


def _serve(orders: _Orders, lane: int) -> None:
    turn = 1
    while True:
        while not wait_awake_until(orders.rounds, 0, turn):
            pass
        if orders.ended:
            return
        try:
            orders.work(lane)
        except BaseException as error:
            orders.failures.append(error)
        publish(orders.rounds, 8 * lane, turn)
        turn += 1


def _end(orders: _Orders) -> None:
    orders.ended = True
    publish(orders.rounds, 0, int(orders.rounds[0]) + 1)


SOLO = Team(1)
