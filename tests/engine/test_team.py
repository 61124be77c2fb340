"""Threads that share the work of a layer."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taihu.worker.engine import Conv2d, Flatten, Model, Sequential, StepContext, StepHooks, build_model
from taihu.worker.engine.base.team import Team


def test_the_ranges_are_disjoint_and_cover_all_parts() -> None:
    for threads in (1, 2, 3, 5):
        team = Team(threads)
        for parts in (0, 1, 2, 3, 7, 20):
            seen: list[tuple[int, int, int]] = []
            team.run(lambda first, last, lane, seen=seen: seen.append((first, last, lane)), parts)
            covered = [part for first, last, _ in sorted(seen) for part in range(first, last)]
            assert covered == list(range(parts))
            assert len({lane for _, _, lane in seen}) == len(seen) <= max(1, min(threads, parts))
            sizes = [last - first for first, last, _ in seen]
            assert max(sizes) - min(sizes) <= 1


def test_members_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=60)
    Team(3).run(lambda first, last, lane: barrier.wait(), 3)


@pytest.mark.parametrize("lane_that_fails", [0, 1])
def test_a_failure_is_raised_and_the_team_goes_on(lane_that_fails: int) -> None:
    team = Team(2)

    def fail(first: int, last: int, lane: int) -> None:
        if lane == lane_that_fails:
            raise ZeroDivisionError("of a member")

    with pytest.raises(ZeroDivisionError, match="of a member"):
        team.run(fail, 2)
    seen: list[int] = []
    team.run(lambda first, last, lane: seen.append(lane), 2)
    assert sorted(seen) == [0, 1]


def test_the_threads_end_with_the_team_and_nothing_is_kept() -> None:
    before = threading.active_count()
    team = Team(3)
    array = np.zeros(3)
    team.run(lambda values, first, last, lane: None, 3, array)
    assert len(gc.get_referrers(array)) == len(gc.get_referrers(np.zeros(3)))
    members = [thread for thread in threading.enumerate() if thread.name.startswith("compute-")]
    assert len(members) >= 2
    del team
    gc.collect()
    for thread in members:
        thread.join(600)
    assert threading.active_count() <= before


def _trained(name: str, threads: int, shape: tuple[int, int, int]) -> tuple[NDArray[Any], list[float]]:
    model: Model = build_model(name, shape, 10)
    parameters, gradients = (np.zeros(model.layout.elements, np.float32) for _ in range(2))
    model.bind(parameters, gradients)
    model.initialize(0)
    model.use_threads(threads)
    generator = np.random.default_rng(0)
    images, labels = generator.standard_normal((7, *shape), dtype=np.float32), generator.integers(0, 10, 7)
    losses = []
    for step in range(3):
        context = StepContext(training=True, seed=0, step=step, first_sample=0)
        losses.append(model.train(images, labels, context, StepHooks()))
        parameters -= np.float32(0.01) * gradients
    return parameters, losses


@pytest.mark.parametrize(
    ("name", "shape"), [("small_cnn", (8, 8, 1)), ("cifar10_quick", (32, 32, 3)), ("resnet20", (17, 15, 3))]
)
def test_the_number_of_threads_changes_no_bit(name: str, shape: tuple[int, int, int]) -> None:
    parameters, losses = _trained(name, 1, shape)
    assert np.isfinite(parameters).all()
    for threads in (2, 3):
        other, other_losses = _trained(name, threads, shape)
        assert losses == other_losses
        assert np.array_equal(parameters, other)


@pytest.mark.parametrize("groups", [1, 2])
def test_filters_are_shared_out_where_a_batch_is_one_block(groups: int) -> None:
    """Eight small images go together; gradients of the second layer's input are made likewise."""
    seen = []
    for threads in (1, 2, 3):
        layers = Sequential([Conv2d(70, 3, 2, 1, groups=groups), Conv2d(74, 3, padding=1, groups=groups), Flatten()])
        model = Model(layers, (6, 5, 4), 3 * 3 * 74)
        model.use_threads(threads)
        parameters, gradients = (np.zeros(model.layout.elements, np.float32) for _ in range(2))
        model.bind(parameters, gradients)
        model.initialize(1)
        images = np.random.default_rng(0).standard_normal((8, 6, 5, 4), dtype=np.float32)
        y = model.forward(images, StepContext(training=True, seed=0, step=0, first_sample=0)).copy()
        model.backward(y)
        seen.append((y, gradients))
    for y, gradients in seen[1:]:
        np.testing.assert_array_equal(y, seen[0][0])
        np.testing.assert_array_equal(gradients, seen[0][1])
