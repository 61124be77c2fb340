from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError
from taihu.core.job.schedule import in_steps, learning_rate, steady_from
from taihu.core.model.run_length import RunLength
from taihu.core.settings import OptimizerSettings

schedules = st.one_of(
    st.just(OptimizerSettings(learning_rate=0.3)),
    st.just(OptimizerSettings(learning_rate=0.3, schedule="step", milestones=(5, 9), gamma=0.5)),
    st.just(OptimizerSettings(learning_rate=0.3, schedule="cosine", decay_steps=37, final_learning_rate=0.01)),
)


@given(schedules, st.integers(0, 60), st.integers(0, 10**6))
def test_a_rate_stays_from_the_step_on_that_is_said(settings: OptimizerSettings, warmup: int, later: int) -> None:
    warmed = settings.model_copy(update={"warmup_steps": warmup})
    first = steady_from(warmed)
    assert learning_rate(warmed, first + later) == learning_rate(warmed, first)
    # Not a step too late either, and any settings begin with step 1.
    assert first == 1 or learning_rate(warmed, first - 1) != learning_rate(warmed, first)


@given(st.integers(1, 10**9))
def test_constant_is_constant(step: int) -> None:
    assert learning_rate(OptimizerSettings(learning_rate=0.07), step) == 0.07


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 0.8), (800, 0.8), (801, 0.08), (1200, 0.08), (1201, 0.008), (10**6, 0.008)]
)
def test_a_milestone_is_the_number_of_steps_before_the_drop(step: int, expected: float) -> None:
    settings = OptimizerSettings(learning_rate=0.8, schedule="step", milestones=(800, 1200), gamma=0.1)
    assert learning_rate(settings, step) == pytest.approx(expected, rel=1e-15)


def test_the_order_of_milestones_does_not_matter_and_equal_ones_count_twice() -> None:
    settings = OptimizerSettings(learning_rate=1.0, schedule="step", milestones=(9, 4, 4), gamma=0.5)
    assert [learning_rate(settings, step) for step in (4, 5, 9, 10)] == [1.0, 0.25, 0.25, 0.125]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, 0.5),
        (26, 0.3 + 0.2 * math.sqrt(0.5)),
        (51, 0.3),
        (76, 0.3 - 0.2 * math.sqrt(0.5)),
        (101, 0.1),
        (102, 0.1),
        (10**7, 0.1),
    ],
)
def test_cosine_at_its_quarters(step: int, expected: float) -> None:
    settings = OptimizerSettings(learning_rate=0.5, schedule="cosine", decay_steps=100, final_learning_rate=0.1)
    assert learning_rate(settings, step) == pytest.approx(expected, rel=1e-12)


def test_cosine_of_a_single_step() -> None:
    settings = OptimizerSettings(learning_rate=0.5, schedule="cosine", decay_steps=1)
    assert [learning_rate(settings, step) for step in (1, 2, 3)] == [0.5, 0.0, 0.0]


@given(st.integers(2, 400))
def test_cosine_falls_all_the_way(decay_steps: int) -> None:
    settings = OptimizerSettings(learning_rate=0.5, schedule="cosine", decay_steps=decay_steps)
    rates = [learning_rate(settings, step) for step in range(1, decay_steps + 2)]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates)


@given(schedules, st.integers(1, 60), st.integers(1, 200))
def test_warmup_multiplies_any_schedule(settings: OptimizerSettings, warmup_steps: int, step: int) -> None:
    warming = settings.model_copy(update={"warmup_steps": warmup_steps})
    full = learning_rate(settings, step)
    if step >= warmup_steps:
        assert learning_rate(warming, step) == full
    else:
        assert learning_rate(warming, step) == pytest.approx(full * step / warmup_steps, rel=1e-15)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_count_from_one(step: int) -> None:
    with pytest.raises(ValueError, match="steps count from 1"):
        learning_rate(OptimizerSettings(), step)


LENGTH = RunLength(samples=1437, steps_per_epoch=14, total_steps=140)


def test_cosine_ends_with_the_run_unless_it_is_told_otherwise() -> None:
    settings = OptimizerSettings(learning_rate=1.0, schedule="cosine")
    given = OptimizerSettings(learning_rate=1.0, schedule="cosine", decay_steps=140)
    by_run = in_steps(settings, LENGTH)
    assert [learning_rate(by_run, step) for step in range(1, 150)] == [learning_rate(given, s) for s in range(1, 150)]
    assert learning_rate(by_run, 140) > 0
    assert learning_rate(by_run, 141) == 0
    longer = OptimizerSettings(schedule="cosine", decay_steps=500)
    assert in_steps(longer, LENGTH).decay_steps == 500


@pytest.mark.parametrize(("epochs", "steps"), [((2, 5), (28, 70)), ((0.5,), (7,)), ((0.01,), (1,)), ((0.25,), (4,))])
def test_epochs_are_the_nearest_number_of_steps(epochs: tuple[float, ...], steps: tuple[int, ...]) -> None:
    settings = in_steps(OptimizerSettings(schedule="step", milestone_epochs=epochs), LENGTH)
    assert settings == OptimizerSettings(schedule="step", milestones=steps, decay_steps=140)
    warming = in_steps(OptimizerSettings(warmup_epochs=epochs[0]), LENGTH)
    assert (warming.warmup_steps, warming.warmup_epochs) == (steps[0], 0.0)


def test_a_schedule_in_steps_needs_no_length() -> None:
    for settings in (
        OptimizerSettings(),
        OptimizerSettings(schedule="cosine", decay_steps=5, warmup_steps=2),
        OptimizerSettings(schedule="step", milestones=(5,)),
    ):
        assert in_steps(settings, None) is in_steps(settings, LENGTH) is settings


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (OptimizerSettings(schedule="cosine"), "decay_steps"),
        (OptimizerSettings(schedule="step", milestone_epochs=(2,)), "milestone_epochs"),
        (OptimizerSettings(warmup_epochs=2), "warmup_epochs"),
    ],
)
def test_a_schedule_by_the_runs_length_is_refused_without_one(settings: OptimizerSettings, key: str) -> None:
    with pytest.raises(ConfigError, match=f"optimizer.{key}: nobody brought the length"):
        in_steps(settings, None)
