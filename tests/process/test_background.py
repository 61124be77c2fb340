"""Tasks of a thread beside: their order, their end, and what goes wrong in one."""

from __future__ import annotations

import threading

import pytest

from taihu.core.base.errors import ExchangeError, RunError
from taihu.core.process.background import TaskThread


def test_tasks_are_carried_out_one_after_the_other_from_the_start_on() -> None:
    seen: list[tuple[int, str]] = []
    tasks = TaskThread("carrier", lambda error: None)
    for number in range(3):
        tasks.put(lambda number=number: seen.append((number, threading.current_thread().name)))  # type: ignore[misc]
    tasks.drain()
    assert not seen
    tasks.start()
    tasks.drain()
    assert seen == [(0, "carrier"), (1, "carrier"), (2, "carrier")]
    tasks.put(lambda: seen.append((3, "")))
    tasks.close()
    assert seen[-1] == (3, "")


def test_what_a_task_raises_is_told_and_ends_all_that_follow() -> None:
    failures: list[BaseException] = []
    seen: list[int] = []
    error = ExchangeError("gone")

    def fail() -> None:
        raise error

    tasks = TaskThread("carrier", failures.append)
    tasks.put(fail)
    tasks.put(lambda: seen.append(1))
    tasks.start()
    tasks.drain()
    tasks.close()
    assert failures == [error]
    assert not seen


def test_a_mistake_is_told_as_one_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    failures: list[BaseException] = []
    tasks = TaskThread("carrier", failures.append)
    tasks.put([].pop)
    tasks.start()
    tasks.close()
    (failure,) = failures
    assert isinstance(failure, RunError)
    assert str(failure).startswith("internal error of the carrier: IndexError(")
    assert [each.exc_type for each in printed] == [IndexError]
