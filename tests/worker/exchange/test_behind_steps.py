"""Whoever is told of a step whose groups have ended finds what it has led to: nothing of the next one has begun."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.cluster import layout_of
from support.exchanges import run_workers, settle, take_step
from support.ways import Way
from support.worker import Worker

from taihu.core.base.errors import RunError, TaihuError
from taihu.worker.training.step_driver import StepDriver

LAYOUT = layout_of(40, 30, 20)
STEPS = 5
WAYS = {
    "ring": Way("ring", 0, transport="tcp"),
    "ring that divides": Way("ring", 1, transport="tcp"),
    "compressed ring": Way("ring", 0, "fp32", "tcp", "dlgs", "exact"),
    "servers": Way("server", 1, transport="grpc"),
}


@pytest.mark.parametrize("kind", WAYS)
def test_each_step_is_told_of_once_before_the_next_one_begins(kind: str) -> None:
    job = WAYS[kind].job(1, 2)
    begun = threading.Barrier(2, timeout=600)

    def work(worker: Worker) -> tuple[list[tuple[int, bytes]], list[bytes]]:
        settle(worker.exchange)
        driver, parameters = StepDriver(job, worker.exchange), worker.arenas.parameters
        told: list[tuple[int, bytes]] = []
        after: list[bytes] = []

        def take(step: int) -> None:
            assert step == len(told) + 1
            begun.wait()  # the training thread does not go on meanwhile
            told.append((step, parameters.tobytes()))

        worker.exchange.behind_steps(take)
        for step in range(1, STEPS + 1):
            take_step(driver, worker, step)
            driver.finish()
            after.append(parameters.tobytes())
            worker.exchange.settle()
            assert len(told) == step
        return told, after

    for told, after in run_workers(job, LAYOUT, work):
        assert told == list(enumerate(after, 1))


def test_a_step_does_not_begin_while_somebody_is_told_of_the_one_before() -> None:
    job = WAYS["ring"].job(1, 2)

    def work(worker: Worker) -> list[Any]:
        settle(worker.exchange)
        driver, order, goes_on = StepDriver(job, worker.exchange), [], threading.Event()

        def take(step: int) -> None:
            assert goes_on.wait(600)
            order.append(("told", step))

        worker.exchange.behind_steps(take)
        take_step(driver, worker, 1)
        driver.finish()
        threading.Timer(0.05, goes_on.set).start()
        for layer in reversed(range(len(LAYOUT.layers))):
            driver.read(layer)
        driver.begin(2)
        order.append(("begun", 2))
        return order

    for order in run_workers(job, LAYOUT, work):
        assert order == [("told", 1), ("begun", 2)]


def test_who_waits_for_that_hears_of_a_failure() -> None:
    job = WAYS["ring"].job(1, 2)

    def work(worker: Worker) -> None:
        settle(worker.exchange)

        def take(step: int) -> None:
            raise RunError("no room is left")

        worker.exchange.behind_steps(take)
        driver = StepDriver(job, worker.exchange)
        take_step(driver, worker, 1)
        driver.finish()
        worker.exchange.settle()

    with pytest.raises(TaihuError, match="no room is left"):
        run_workers(job, LAYOUT, work)
