"""Orders in which ready tasks go on: drawn from a seed, pure."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, Protocol

from taihu.explore.tasks import Task

# Of the points of a run; runs are of very different lengths, and a change behind the end changes nothing.
_EXPECTED_POINTS: Final = 6000
# Some messages take as long.
_LONGEST_STALL_S: Final = 0.005


class Order(Protocol):
    """The one that says who goes on."""

    def choose(self, ready: Sequence[Task]) -> int:
        """The place in `ready`, which is not empty, of the task that goes on."""
        ...

    def preempts(self, running: Task, ready: Sequence[Task]) -> bool:
        """Whether another task of `ready` goes on, now that the running one passes a point."""
        ...

    def stalls_s(self) -> float:
        """Virtual seconds for which the running task stands still where none preempts it; mostly 0."""
        ...


class RandomOrder:
    """Any ready task, with equal chances.

    Args:
        chance: what it draws from.
        preempting: the share of points at which the running task is held up.
        stalling: the share of those at which it stands still for some time, as one whose processor does others' work:
            messages come meanwhile, which nothing else lets them do in the middle of what takes no virtual time.
    """

    def __init__(self, chance: Random, preempting: float, stalling: float = 0.0) -> None:
        self._draw = chance.random
        self._preempting = preempting
        self._stalling = stalling

    def choose(self, ready: Sequence[Task]) -> int:
        """Take the place in `ready` of the task that goes on."""
        return int(self._draw() * len(ready))

    def preempts(self, running: Task, ready: Sequence[Task]) -> bool:
        """Tell whether another one goes on."""
        return bool(ready) and self._draw() < self._preempting

    def stalls_s(self) -> float:
        """Tell for how long it stands still."""
        return _LONGEST_STALL_S * self._draw() if self._stalling and self._draw() < self._stalling else 0.0


class PriorityOrder:
    """The ready task of the highest priority, which changes at a few points: probabilistic concurrency testing.

    A bug of depth d, one that d ordered events bring about, is found with a probability of at least 1 / (n k^(d - 1))
    in n tasks and k points (Burckhardt et al., ASPLOS 2010, section 3).

    Args:
        chance: what it draws from.
        changes: how many points there are at which the running task falls behind all others.
    """

    def __init__(self, chance: Random, changes: int) -> None:
        self._chance = chance
        self._changes = set(chance.sample(range(_EXPECTED_POINTS), changes))
        self._passed = 0
        self._priorities: dict[int, float] = {}
        self._lowest = 0.0

    def choose(self, ready: Sequence[Task]) -> int:
        """Take the place in `ready` of the task that goes on."""
        best, highest = 0, -float("inf")
        for place, task in enumerate(ready):
            priority = self._priority(task)
            if priority > highest:
                best, highest = place, priority
        return best

    def preempts(self, running: Task, ready: Sequence[Task]) -> bool:
        """Tell whether another one goes on."""
        self._passed += 1
        if self._passed in self._changes:
            self._lowest -= 1.0
            self._priorities[running.number] = self._lowest
        own = self._priority(running)
        return any(self._priority(task) > own for task in ready)

    def stalls_s(self) -> float:
        """Tell that it does not stand still."""
        return 0.0

    def _priority(self, task: Task) -> float:
        known = self._priorities.get(task.number)
        if known is None:
            known = self._priorities[task.number] = self._chance.random()
        return known


class BoundedOrder:
    """Another order, which holds up tasks at its first `holds` points alone; behind them all go on as they came.

    Args:
        order: the other one.
        holds: how many.
    """

    def __init__(self, order: Order, holds: int) -> None:
        self._order = order
        self._left = holds

    def choose(self, ready: Sequence[Task]) -> int:
        """Take the place in `ready` of the task that goes on."""
        return self._order.choose(ready) if self._left > 0 else 0

    def preempts(self, running: Task, ready: Sequence[Task]) -> bool:
        """Tell whether another one goes on."""
        if self._left <= 0 or not self._order.preempts(running, ready):
            return False
        self._left -= 1
        return True

    def stalls_s(self) -> float:
        """Tell for how long it stands still."""
        stall_s = self._order.stalls_s() if self._left > 0 else 0.0
        self._left -= stall_s > 0
        return stall_s
