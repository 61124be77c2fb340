"""A plan that turns out slower than the one before is taken back, and tried again later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cluster import layout_of, make_job, measured_step

from taihu.core.coordination.plans.planning import Planning
from taihu.core.coordination.plans.windows import Windows
from taihu.core.planner.groups import Group

APART, MERGED = (Group(0, 0), Group(1, 1)), (Group(0, 1),)
TWELVE = layout_of(*(100 * number**2 for number in range(1, 13)))


def test_a_plan_that_was_not_measured_is_tried() -> None:
    windows = Windows()
    windows.note(APART, 1.0)
    assert windows.best(MERGED) == MERGED


@pytest.mark.parametrize(("apart_s", "merged_s", "best"), [(1.0, 1.2, APART), (1.0, 1.1, MERGED), (1.2, 1.0, MERGED)])
def test_one_that_takes_a_tenth_longer_is_taken_back(
    apart_s: float, merged_s: float, best: tuple[Group, ...]
) -> None:
    windows = Windows()
    windows.note(APART, apart_s)
    windows.note(MERGED, merged_s)
    assert windows.best(MERGED) == best


def test_it_is_tried_again_when_other_windows_have_passed() -> None:
    windows = Windows()
    taken = []
    windows.note(APART, 1.0)
    windows.note(MERGED, 2.0)
    for _ in range(3):
        taken.append(windows.best(MERGED))
        windows.note(taken[-1], 1.0)
    assert taken == [APART, APART, APART]
    assert windows.best(MERGED) == MERGED


@given(st.lists(st.tuples(st.sampled_from([APART, MERGED, (Group(0, 2),)]), st.floats(0.0, 10.0)), max_size=12))
def test_the_best_is_wanted_or_was_faster_in_one_of_the_last_windows(
    told: Sequence[tuple[tuple[Group, ...], float]],
) -> None:
    windows = Windows()
    for groups, seconds in told:
        windows.note(groups, seconds)
    best = windows.best(MERGED)
    last = {groups: seconds for groups, seconds in told[-3:] if seconds}
    assert best == MERGED or last[best] < 0.9 * last[MERGED]


def report(planning: Planning, after: int, seconds: float) -> None:
    for rank in range(2):
        steps = [
            replace(measured_step(planning.plan, after - serial, 0.0001, serial=bool(serial)), seconds=seconds)
            for serial in (1, 0)
        ]
        planning.report(rank, after, steps)


def test_a_run_goes_back_to_the_plan_that_was_faster() -> None:
    planning = Planning(make_job(1, 2, compression={"method": "none"}), TWELVE)
    apart = planning.plan.groups
    report(planning, 8, 1.0)
    merged = planning.plan.groups
    assert merged != apart
    report(planning, 16, 1.5)
    assert planning.plan.groups == apart
    for after in (216, 416):
        report(planning, after, 1.0)
        assert planning.plan.groups == apart
    assert planning.plan.version == 3
