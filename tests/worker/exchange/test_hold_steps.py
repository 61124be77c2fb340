"""A step is held before anybody goes on: what workers have alike behind it, a share before others get it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import layout_of
from support.exchanges import Holds, run_workers, settle, take_step, try_workers
from support.ways import Way
from support.worker import Worker
from typing_extensions import override

from taihu.core.base.errors import RunError, TaihuError
from taihu.core.checkpoint.held_steps import HeldSteps, Label, labels_of, read_held
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.coordination.plans.planning import first_plan
from taihu.core.planner.sparse_route import SparseAlgorithm
from taihu.worker.exchange.base.holding import Hold, Holding
from taihu.worker.training.step_driver import StepDriver

LAYOUT = layout_of(40, 30, 20)
STEPS = 5
RUN = Manifest(job="job", settings={}, step=0, total_steps=9, servers=0, workers=2, layers=[], groups=[], files={})
ALIKE = {
    "ring": Way("ring", 0, transport="tcp"),
    "compressed ring": Way("ring", 0, "fp32", "tcp", "dlgs", "exact"),
    "servers": Way("server", 0, transport="grpc"),
}
SHARES = {
    f"stage {stage}{words}": (stage, sections)
    for stage, words, sections in (
        (1, "", {}),
        (2, "", {}),
        (3, "", {}),
        (1, ", clipped", {"optimizer": {"clip": "whole", "clip_norm": 0.5}}),
    )
}


class Watched(HeldSteps):
    """Tells before a step is held."""

    def __init__(self, folder: Path, member: str, ends: Callable[[int], None]) -> None:
        super().__init__(folder, member, 7, RUN, steps=3)
        self._ends = ends

    @override
    def end(self, step: int) -> None:
        self._ends(step)
        super().end(step)


def by(make: Callable[[int], HeldSteps], *, is_first: bool = True) -> Holds:
    """Each rank's steps are held by what `make` returns for it, as an exchange has them."""

    def of(rank: int) -> Hold:
        held = make(rank)
        return lambda _: Holding(held, lambda state: state, is_first)

    return of


@pytest.mark.parametrize("kind", ALIKE)
def test_each_step_is_held_once_before_the_next_one_begins(kind: str, tmp_path: Path) -> None:
    job = ALIKE[kind].job(1, 2)
    begun = threading.Barrier(2, timeout=600)
    all_ended: dict[int, list[int]] = {0: [], 1: []}

    def make(rank: int) -> HeldSteps:
        def ends(step: int) -> None:
            begun.wait()  # the training thread does not go on meanwhile
            all_ended[rank].append(step)

        folder = tmp_path / str(rank)
        folder.mkdir()
        return Watched(folder, "worker 0", ends)

    def work(worker: Worker) -> tuple[list[int], list[bytes], list[bytes]]:
        settle(worker.exchange)
        driver, parameters = StepDriver(worker.exchange), worker.arenas.parameters
        folder, ended = tmp_path / str(worker.rank), all_ended[worker.rank]
        held: list[bytes] = []
        after: list[bytes] = []
        for step in range(1, STEPS + 1):
            take_step(driver, worker, step)
            driver.finish()
            after.append(parameters.tobytes())
            worker.exchange.settle()
            held.append(read_held(folder, "worker 0", Label(7, step)).shared.arrays["parameters"].tobytes())
        return ended, held, after

    for ended, held, after in run_workers(job, LAYOUT, work, holds=by(make)):
        assert ended == list(range(1, STEPS + 1))
        assert held == after


@pytest.mark.parametrize("kind", SHARES)
def test_what_workers_hold_together_is_what_all_read(kind: str, tmp_path: Path) -> None:
    stage, sections = SHARES[kind]
    job = Way("ring", stage, transport="tcp").job(1, 3, **sections)

    def work(worker: Worker) -> bytes:
        settle(worker.exchange)
        driver = StepDriver(worker.exchange)
        for step in range(1, STEPS + 1):
            take_step(driver, worker, step)
            driver.finish()
            for layer in range(len(LAYOUT.layers)):
                driver.read(layer)
            # Whoever has all of a step knows that everybody holds it.
            for rank in range(3):
                assert Label(7, step) in labels_of(tmp_path, f"worker {rank}")
        return worker.arenas.parameters.tobytes()

    read = run_workers(
        job, LAYOUT, work, holds=by(lambda rank: HeldSteps(tmp_path, f"worker {rank}", 7, RUN, steps=3))
    )
    whole = np.full(LAYOUT.elements, np.nan, dtype=np.float32)
    for rank in range(3):
        state = read_held(tmp_path, f"worker {rank}", Label(7, STEPS))
        taken = 0
        for start, stop in state.shared.bounds:
            whole[start:stop] = state.shared.arrays["parameters"][taken : taken + stop - start]
            taken += stop - start
    assert {whole.tobytes()} == set(read)


@pytest.mark.parametrize("kind", SHARES)
def test_nobody_gets_what_its_owner_has_not_held(kind: str, tmp_path: Path) -> None:
    """An owner that was killed in between would have taken the step with it."""
    stage, sections = SHARES[kind]
    job = Way("ring", stage, transport="tcp").job(1, 3, **sections)
    completed: list[tuple[int, int]] = []

    def make(rank: int) -> HeldSteps:
        def ends(step: int) -> None:
            if (rank, step) == (1, 2):
                raise RunError("killed here")

        return Watched(tmp_path, f"worker {rank}", ends)

    def work(worker: Worker) -> None:
        settle(worker.exchange)
        driver = StepDriver(worker.exchange)
        for step in (1, 2):
            take_step(driver, worker, step)
            driver.finish()
            for layer in range(len(LAYOUT.layers)):
                driver.read(layer)
            completed.append((worker.rank, step))

    ends = try_workers(job, LAYOUT, work, holds=by(make))
    assert all(isinstance(end, TaihuError) for end in ends)
    assert sorted(completed) == [(0, 1), (1, 1), (2, 1)]


def test_a_step_does_not_begin_while_the_one_before_is_being_held(tmp_path: Path) -> None:
    job = ALIKE["ring"].job(1, 2)

    orders: dict[int, list[tuple[str, int]]] = {0: [], 1: []}
    all_go_on = threading.Event(), threading.Event()

    def make(rank: int) -> HeldSteps:
        def ends(step: int) -> None:
            assert all_go_on[rank].wait(600)
            orders[rank].append(("held", step))

        return Watched(tmp_path, f"worker {rank}", ends)

    def work(worker: Worker) -> list[Any]:
        settle(worker.exchange)
        driver, order, goes_on = StepDriver(worker.exchange), orders[worker.rank], all_go_on[worker.rank]
        take_step(driver, worker, 1)
        driver.finish()
        threading.Timer(0.05, goes_on.set).start()
        for layer in reversed(range(len(LAYOUT.layers))):
            driver.read(layer)
        driver.begin(2)
        order.append(("begun", 2))
        return order

    for order in run_workers(job, LAYOUT, work, holds=by(make)):
        assert order == [("held", 1), ("begun", 2)]


def test_who_waits_for_that_hears_of_a_failure(tmp_path: Path) -> None:
    job = ALIKE["ring"].job(1, 2)

    def make(rank: int) -> HeldSteps:
        def ends(step: int) -> None:
            raise RunError("no room is left")

        return Watched(tmp_path, f"worker {rank}", ends)

    def work(worker: Worker) -> None:
        settle(worker.exchange)
        driver = StepDriver(worker.exchange)
        take_step(driver, worker, 1)
        driver.finish()
        worker.exchange.settle()

    with pytest.raises(TaihuError, match="no room is left"):
        run_workers(job, LAYOUT, work, holds=by(make))


def test_what_a_sum_leaves_out_is_held_with_the_step(tmp_path: Path) -> None:
    """It goes back into what the worker holds back when the sum has come, behind the selection."""
    job = Way("ring", 0, "fp32", "tcp", "topk", "doublesqueeze").job(1, 3)
    assert job.takes_back
    plan = first_plan(job, LAYOUT, one_host=False)

    def work(worker: Worker) -> bytes:
        settle(worker.exchange)
        driver, member = StepDriver(worker.exchange), f"worker {worker.rank}"
        for step in range(1, STEPS + 1):
            gradients = np.random.default_rng([worker.rank, step]).standard_normal(LAYOUT.elements)
            take_step(driver, worker, step, gradients.astype(np.float32))
            driver.finish()
            worker.exchange.settle()
            residual = worker.exchange.residual.tobytes()
            assert read_held(tmp_path, member, Label(7, step)).own["residual"].tobytes() == residual
        return residual

    def make(rank: int) -> HeldSteps:
        return HeldSteps(tmp_path, f"worker {rank}", 7, RUN, steps=3)

    # By an allgather all is taken, and nothing goes back.
    holds = by(make, is_first=False)
    taken_back, all_taken = (
        run_workers(job, LAYOUT, work, plan=replace(plan, routes=(route,) * len(plan.groups)), holds=holds)
        for route in (SparseAlgorithm.GTOPK, SparseAlgorithm.ALLGATHER)
    )
    assert taken_back != all_taken


def test_only_rings_that_send_less_than_all_take_something_back() -> None:
    assert not Way("ring", 0, "fp32", "tcp", "topk", "exact").job(1, 3).takes_back
    assert not Way("server", 1, "fp32", "tcp", "topk", "doublesqueeze").job(1, 3).takes_back
