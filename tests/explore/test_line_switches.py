"""A lock that was taken out of a small class is seen by switches between its lines, and by no others."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from taihu.explore.carriers import Batons
from taihu.explore.line_switches import LineSwitches, lines_of
from taihu.explore.orders import Order, PriorityOrder, RandomOrder
from taihu.explore.scheduler import Scheduler
from taihu.explore.stand_ins.locks import Lock
from taihu.explore.stand_ins.threads import Thread
from taihu.explore.tasks import Process

TASKS, TIMES = 3, 4


class Counter:
    def __init__(self, lock: Any) -> None:
        self.count = 0
        self._lock = lock

    def add(self) -> None:
        with self._lock:
            count = self.count + 1
            self.count = count

    def add_at_once(self) -> None:
        with self._lock:
            self.count += 1


class NoLock:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def counted(seed: int, make: Callable[[], Any], add: str, order: Order | None = None, **more: Any) -> tuple[int, str]:
    """The count at the end, and the digest of the run."""
    scheduler = Scheduler(seed, Batons(), order or RandomOrder(Random(seed), 0.5))
    counter = None

    def main() -> None:
        nonlocal counter
        counter = Counter(make())
        act = getattr(counter, add)
        threads = [Thread(target=lambda: [act() for _ in range(TIMES)]) for _ in range(TASKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    try:
        with LineSwitches(scheduler, [__name__], Random(f"{seed} lines"), **{"share": 0.3, **more}):
            scheduler.run(main, Process("worker 0"))
    finally:
        scheduler.close()
    assert counter is not None
    return counter.count, scheduler.digest


@pytest.mark.parametrize(("add", "within_lines"), [("add", False), ("add_at_once", True)])
def test_a_missing_lock_is_found_and_one_that_is_there_holds(add: str, within_lines: bool) -> None:
    more: dict[str, Any] = {"within_lines": within_lines, "share": 0.1}
    assert any(counted(seed, NoLock, add, **more)[0] < TASKS * TIMES for seed in range(10))
    assert all(counted(seed, Lock, add, **more)[0] == TASKS * TIMES for seed in range(10))


def test_by_priorities_too() -> None:
    found = [counted(seed, NoLock, "add", PriorityOrder(Random(seed), 2))[0] for seed in range(10)]
    assert min(found) < TASKS * TIMES


def test_without_line_switches_it_is_not_seen() -> None:
    assert all(counted(seed, NoLock, "add", share=0.0)[0] == TASKS * TIMES for seed in range(5))


def test_the_same_seed_is_the_same_run() -> None:
    assert counted(3, NoLock, "add") == counted(3, NoLock, "add")
    assert len({counted(seed, NoLock, "add")[1] for seed in range(5)}) == 5


def test_nothing_is_switched_while_foreign_code_may_hold_a_real_lock() -> None:
    """Each of both tasks would wait for a real lock that the other one has, and nothing would go on."""
    real = threading.Lock()

    def called_with_lock() -> None:
        for _ in range(20):
            pass

    foreign: dict[str, Any] = {"__name__": "logging"}
    exec("def hold(lock, call):\n    with lock:\n        call()", foreign)  # noqa: S102
    assert counted(0, functools.partial(_Holding, foreign["hold"], real, called_with_lock), "add")[0] > 0


class _Holding:
    def __init__(self, hold: Callable[..., object], lock: Any, call: Callable[[], object]) -> None:
        self._hold = functools.partial(hold, lock, call)

    def __enter__(self) -> None:
        self._hold()

    def __exit__(self, *_: object) -> None:
        pass


def test_places_with_locks_are_drawn() -> None:
    drawn = {lines_of(Random(seed)).modules[0] for seed in range(200)}
    assert {
        "taihu.ps_server.server_shard",
        "taihu.ps_server",
        "taihu.core.wire.base.room",
        "taihu.worker.exchange.threads",
    } <= drawn
    assert lines_of(Random(5)) == lines_of(Random(5))
    assert str(lines_of(Random(5))).startswith("held up ")
