from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import RunError
from taihu.core.optimization import LossScale


def runs_without_overflow(steps: list[bool]) -> list[list[bool]]:
    """The steps between those that were skipped."""
    runs: list[list[bool]] = [[]]
    for skipped in steps:
        if skipped:
            runs.append([])
        else:
            runs[-1].append(skipped)
    return runs


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 9))
def test_it_halves_with_every_skipped_step_and_doubles_after_a_row_of_others(steps: list[bool], growth: int) -> None:
    scale = LossScale(2.0**26, growth)
    initial = scale.value
    try:
        for skipped in steps:
            scale.update(skipped=skipped)
    except RunError:
        assert sum(steps) > 26
        return
    assert scale.skipped_steps == sum(steps)
    doubled = sum(len(run) // growth for run in runs_without_overflow(steps))
    if doubled <= 6:
        assert scale.value == initial * 2.0 ** (doubled - sum(steps))
    assert 1.0 <= scale.value <= 2.0**32


def test_an_overflow_without_scale_is_an_error() -> None:
    scale = LossScale(2.0, 2000)
    scale.update(skipped=True)
    assert scale.value == 1.0
    with pytest.raises(RunError, match=r"even with loss scale 1; lower optimizer.learning_rate"):
        scale.update(skipped=True)


def test_it_grows_no_further_than_fp32_can_hold_gradients() -> None:
    scale = LossScale(2.0**31, 1)
    for _ in range(5):
        scale.update(skipped=False)
    assert scale.value == 2.0**32


def test_a_scale_goes_on_from_what_it_remembered() -> None:
    steps = [False, False, True, False, True, False, False, False]
    whole, first = LossScale(64.0, 3), LossScale(64.0, 3)
    for skipped in steps[:4]:
        whole.update(skipped=skipped)
        first.update(skipped=skipped)
    second = LossScale(1.0, 3)
    second.resume(json.loads(json.dumps(first.facts())))
    for skipped in steps[4:]:
        whole.update(skipped=skipped)
        second.update(skipped=skipped)
        assert (second.value, second.skipped_steps) == (whole.value, whole.skipped_steps)
