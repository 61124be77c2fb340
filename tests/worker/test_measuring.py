"""The schedule of measured steps, against its words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.worker.training.calibration import Measuring

SCHEDULES = st.builds(Measuring, st.integers(4, 30), st.integers(1, 300))


@given(SCHEDULES, st.integers(1, 3000))
def test_reports_follow_the_calibration_and_its_check_and_then_come_regularly(schedule: Measuring, step: int) -> None:
    first, every = schedule.calibration_steps, schedule.replan_every
    second = first + min(first, every)
    assert schedule.reports_after(step) == (step == first or (step >= second and (step - second) % every == 0))


@given(SCHEDULES, st.integers(1, 3000))
def test_the_last_steps_before_a_report_are_serial(schedule: Measuring, step: int) -> None:
    following = range(step, step + schedule.serial_steps)
    assert schedule.is_serial(step) == any(schedule.reports_after(later) for later in following)


@given(SCHEDULES)
def test_the_first_report_holds_overlapped_and_serial_steps_but_not_the_first_two(schedule: Measuring) -> None:
    measured = [step for step in range(1, schedule.calibration_steps + 1) if schedule.is_measured(step)]
    assert measured == list(range(3, schedule.calibration_steps + 1))
    serial = [step for step in measured if schedule.is_serial(step)]
    assert 1 <= len(serial) < len(measured)


@given(SCHEDULES, st.integers(1, 3000))
def test_steady_steps_come_after_the_second_report_and_are_not_serial(schedule: Measuring, step: int) -> None:
    second = schedule.calibration_steps + min(schedule.calibration_steps, schedule.replan_every)
    assert schedule.is_steady(step) == (step > second and not schedule.is_serial(step))


def test_a_run_that_goes_on_measures_anew() -> None:
    """The same schedule, counted from the step that it goes on from."""
    new, resumed = Measuring(9, 50), Measuring(9, 50, begun_after=1000)
    for step in range(1, 200):
        assert resumed.reports_after(1000 + step) == new.reports_after(step)
        assert resumed.is_serial(1000 + step) == new.is_serial(step)
        assert resumed.is_measured(1000 + step) == new.is_measured(step)
        assert resumed.is_steady(1000 + step) == new.is_steady(step)
