"""Signs of a worker that it gets on, and the time after which a step is late."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.measure import late_after
from taihu.core.coordination.membership.members import Progress
from taihu.worker.reporting.activity import Activity


class Clock:
    """A clock that stands."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@given(st.lists(st.floats(0.0, 1e4), min_size=5, max_size=20))
def test_what_is_late_is_unlike_what_was_before(seconds: list[float]) -> None:
    middle = np.median(seconds)
    deviation = np.median(np.abs(np.array(seconds) - middle))
    assert late_after(seconds) == pytest.approx(max(middle + 1.0, middle + 8.0 * deviation))


@given(st.lists(st.floats(0.0, 1e4), max_size=4))
def test_of_few_nothing_is_known(seconds: list[float]) -> None:
    assert late_after(seconds) == 0.0


def test_a_worker_says_when_it_moves_and_what_keeps_it() -> None:
    clock = Clock()
    activity = Activity(clock)
    told = activity.told(Progress(step=3))
    assert (told.step, told.busy_with, told.waits_for, told.slow_after_seconds) == (3, "its first step", "", 0.0)
    assert told.moves
    before = told.moves
    activity.moved()
    assert activity.told(Progress()).moves > before
    for _ in range(5):
        clock.sleep(2.0)
        activity.stepped()
    clock.sleep(2.5)
    told = activity.told(Progress())
    assert (told.busy_with, told.in_step_seconds, told.slow_after_seconds) == ("", 2.5, 3.0)
    with activity.busy("a test"):
        clock.sleep(60.0)
        assert activity.told(Progress()).busy_with == "a test"
    # What lay between two steps is no part of the next one.
    assert activity.told(Progress()).in_step_seconds == 0.0
