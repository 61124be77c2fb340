"""What fp16 holds back, step by step."""

from __future__ import annotations

import pytest

from taihu.errors import RunError
from taihu.settings import TrainSettings
from worker.exchange.held_gradients import HeldGradients


def test_other_precisions_hold_and_scale_nothing() -> None:
    held = HeldGradients(TrainSettings(precision="bf16"))
    held.begin(3)
    assert [held.add(group, fits=group != 1) for group in range(3)] == [(0,), (1,), (2,)]
    held.begin(3)
    assert (held.loss_scale, held.skipped_steps, held.overflowed) == (1.0, 0, False)


def test_a_step_is_sent_when_it_is_complete_and_first_what_forward_reads_first() -> None:
    held = HeldGradients(TrainSettings(precision="fp16", loss_scale=8))
    held.begin(3)
    assert [held.add(group, fits=True) for group in range(3)] == [(), (), (2, 1, 0)]
    assert not held.overflowed


def test_one_overflow_is_that_of_the_step_and_skipping_halves_the_next_scale() -> None:
    held = HeldGradients(TrainSettings(precision="fp16", loss_scale=8))
    held.begin(2)
    assert held.add(0, fits=False) == ()
    assert held.add(1, fits=True) == (1, 0)
    assert held.overflowed
    held.skipped = True
    assert (held.loss_scale, held.skipped_steps) == (8.0, 1)
    held.begin(2)
    assert (held.loss_scale, held.skipped_steps, held.overflowed, held.skipped) == (4.0, 1, False, False)


def test_scales_grow_after_a_row_of_steps_and_end_at_one() -> None:
    held = HeldGradients(TrainSettings(precision="fp16", loss_scale=2, loss_scale_growth_steps=3))
    scales = []
    for _ in range(5):
        held.begin(1)
        scales.append(held.loss_scale)
    assert scales == [2.0, 2.0, 2.0, 4.0, 4.0]
    for _ in range(2):
        held.skipped = True
        held.begin(1)
    held.skipped = True
    with pytest.raises(RunError, match="even with loss scale 1"):
        held.begin(1)
