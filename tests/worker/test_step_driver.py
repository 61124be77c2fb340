"""Driving an exchange layer by layer: a group goes when its last tensor is ready, in whatever order they come."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster import make_job
from support.exchanges import run_workers
from support.worker import Values, Worker, initial_parameters

from taihu.core.base.errors import RunError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.worker.exchange.ground import Waits
from taihu.worker.training.step_driver import StepDriver

SGD = {"name": "sgd", "learning_rate": 0.5, "momentum": 0.0}


def layout_of(tensors: Sequence[int]) -> Layout:
    """Layers of so many tensors of three values."""
    return Layout(
        tuple(
            LayerSpec(f"layer{index}", tuple(TensorSpec(f"t{each}", (3,)) for each in range(count)))
            for index, count in enumerate(tensors)
        )
    )


def alone(zero: int, precision: str = "fp32") -> Job:
    """A job of one worker without servers."""
    exchange = {"kind": "ring", "zero": zero, "bucket_bytes": 4096}
    return make_job(1, 1, exchange=exchange, optimizer=SGD, train={"precision": precision})


def groups_of(layers: int, ends: Sequence[bool]) -> tuple[Group, ...]:
    """Groups that end behind the layers that `ends` says, and behind the last."""
    lasts = [*(layer for layer in range(layers - 1) if ends[layer]), layers - 1]
    return tuple(Group(first, last) for first, last in zip([0, *(last + 1 for last in lasts)], lasts, strict=False))


def pushed(worker: Worker) -> Iterator[bool]:
    """Whether each group has been pushed in this step."""
    return (times.ready_s > 0 for times in worker.exchange.group_times())


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_group_is_pushed_when_its_last_tensor_is_ready(data: st.DataObject) -> None:
    tensors = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    ends = data.draw(st.lists(st.booleans(), min_size=len(tensors), max_size=len(tensors)))
    layout = layout_of(tensors)
    groups = groups_of(len(tensors), ends)
    order = data.draw(st.permutations([layer for layer, count in enumerate(tensors) for _ in range(count)]))

    def work(worker: Worker) -> Values:
        driver = StepDriver(worker.exchange)
        for layer in reversed(range(len(tensors))):
            driver.read(layer)
        driver.begin(1)
        worker.arenas.gradients[:] = 1.0
        missing = list(order)
        for layer in order:
            driver.prepare(layer)
            driver.tensor_ready(layer)
            missing.remove(layer)
            expected = [not set(missing).intersection(range(g.first_layer, g.last_layer + 1)) for g in groups]
            assert list(pushed(worker)) == expected
        driver.end_backward()
        driver.finish()
        return worker.arenas.parameters.copy()

    job = alone(0)
    (end,) = run_workers(job, layout, work, plan=Plan(1, 1, groups, layout, 1000, world=job.world))
    np.testing.assert_array_equal(end, initial_parameters(layout) - np.float32(0.5))


@pytest.mark.parametrize(("zero", "precision"), [(0, "fp32"), (2, "fp32"), (3, "fp32"), (2, "bf16"), (2, "fp16")])
def test_groups_may_be_exchanged_one_by_one(zero: int, precision: str) -> None:
    layout = layout_of([2, 1, 1])
    groups = tuple(Group(layer, layer) for layer in range(3))
    job = alone(zero, precision)

    def work(worker: Worker) -> tuple[list[list[bool]], list[int]]:
        waits: list[int] = []
        seen = []

        def timed(those: Waits, group: int) -> Waits:
            waits.append(group)
            return those

        driver = StepDriver(worker.exchange, timed)
        for layer in reversed(range(3)):
            driver.read(layer)
        driver.begin(1, one_by_one=True)
        waits.clear()
        for layer in range(3):
            driver.prepare(layer)
            start, stop = worker.bounds[layer]
            worker.arenas.gradients[start:stop] = 1.0
            driver.ready(layer)
            seen.append(list(pushed(worker)))
        driver.end_backward()
        seen.append(list(pushed(worker)))
        driver.finish()
        return seen, waits

    ((seen, waits),) = run_workers(job, layout, work, plan=Plan(1, 1, groups, layout, 1000, world=job.world))
    if zero == 0:  # behind backward, which they would disturb
        assert seen == [[False] * 3] * 3 + [[True] * 3]
        assert waits == [0, 1, 2, 0, 1, 2]
    else:  # gradients have no memory beyond their exchange
        assert seen == [[True, False, False], [True, True, False], [True] * 3, [True] * 3]
        assert waits == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_groups_that_are_left_out_of_a_step_are_as_they_were(one_by_one: bool) -> None:
    layout = layout_of([1, 2, 1])
    groups = tuple(Group(layer, layer) for layer in range(3))
    job = alone(0)

    def work(worker: Worker) -> list[Values]:
        driver, seen = StepDriver(worker.exchange), [worker.arenas.parameters.copy()]
        for step, left_out in ((1, [1]), (2, [0, 2]), (3, [])):
            driver.begin(step, one_by_one=one_by_one)
            worker.arenas.gradients[:] = 1.0
            for group in range(3):
                (driver.leave_out if group in left_out else driver.ready)(group)
            driver.end_backward()
            assert list(pushed(worker)) == [group not in left_out for group in range(3)]
            driver.finish()
            seen.append(worker.arenas.parameters.copy())
        return seen

    (seen,) = run_workers(job, layout, work, plan=Plan(1, 1, groups, layout, 1000, world=job.world))
    for (before, after), moved in zip(itertools.pairwise(seen), ([1, 0, 0, 1], [0, 1, 1, 0], [1] * 4), strict=True):
        np.testing.assert_array_equal(after, before - np.repeat(moved, 3).astype(np.float32) / 2)


def test_too_many_and_too_few_gradients_are_told() -> None:
    layout = layout_of([2, 1])
    job = alone(0)

    def work(worker: Worker) -> None:
        driver = StepDriver(worker.exchange)
        driver.begin(1)
        driver.tensor_ready(0)
        driver.ready(1)
        with pytest.raises(RunError, match="step 1: backward ended while 1 tensors of group 0 have no gradients"):
            driver.end_backward()
        driver.tensor_ready(0)
        with pytest.raises(RunError, match="step 1: layer 0 has brought more gradients than it has tensors"):
            driver.ready(0)
        driver.end_backward()
        driver.finish()

    groups = tuple(Group(layer, layer) for layer in range(2))
    run_workers(job, layout, work, plan=Plan(1, 1, groups, layout, 1000, world=job.world))


def test_a_step_is_replayed() -> None:
    layout = layout_of([1, 1])
    job = alone(0)

    def work(worker: Worker) -> Values:
        driver = StepDriver(worker.exchange)
        for step, attempts in ((1, 3), (2, 1)):
            for attempt in range(attempts):
                if attempt:
                    driver.abort()
                driver.begin(step, attempt=attempt)
                worker.arenas.gradients[:] = 1.0
                for layer in range(2 if attempt == attempts - 1 else attempt):
                    driver.ready(layer)
            driver.end_backward()
            driver.finish()
        return worker.arenas.parameters.copy()

    groups = tuple(Group(layer, layer) for layer in range(2))
    (end,) = run_workers(job, layout, work, plan=Plan(1, 1, groups, layout, 1000, world=job.world))
    np.testing.assert_array_equal(end, initial_parameters(layout) - np.float32(0.5) - np.float32(0.5))


def test_whatever_the_order_the_bits_are_the_same() -> None:
    layout = layout_of([1, 2, 1])
    ends = set()
    job = make_job(1, 2, exchange={"kind": "ring"}, optimizer=SGD)
    for order in itertools.permutations(range(3)):

        def work(worker: Worker, order: tuple[int, ...] = order) -> bytes:
            driver = StepDriver(worker.exchange)
            for step in (1, 2):
                driver.begin(step)
                worker.arenas.gradients[:] = np.arange(layout.elements) / (worker.rank + step)
                for layer in order:
                    driver.ready(layer)
                driver.end_backward()
                driver.finish()
            return worker.arenas.parameters.tobytes()

        groups = (Group(0, 0), Group(1, 2))
        ends.update(run_workers(job, layout, work, plan=Plan(1, 1, groups, layout, 1000, world=job.world)))
    assert len(ends) == 1
