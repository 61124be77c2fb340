"""Tests of the replica: one at the end of each epoch and of the run, however often it was left and gone on with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.worker.steps import is_tested


@given(st.integers(1, 7), st.integers(1, 40), st.sets(st.integers(1, 39)))
def test_every_epoch_is_tested_once(per_epoch: int, total: int, left_behind: set[int]) -> None:
    tested = [
        step
        for step in range(1, total + 1)
        if is_tested(
            step,
            per_epoch,
            is_last=step == total or step in left_behind,
            is_early=step != total and step in left_behind,
            goes_on=step != total and step in left_behind,
        )
    ]
    assert tested == [step for step in range(1, total + 1) if step % per_epoch == 0 or step == total]


@given(st.integers(1, 7), st.integers(1, 40))
def test_a_stop_waits_for_no_test(per_epoch: int, step: int) -> None:
    assert not is_tested(step, per_epoch, is_last=True, is_early=True, goes_on=False)
