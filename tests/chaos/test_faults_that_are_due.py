"""Faults that are due, against a list of what was passed; draws against their distribution."""

from __future__ import annotations

from itertools import islice, pairwise, takewhile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.chaos.faults import ANY, Fault, FaultKind
from taihu.core.chaos.points import Point
from taihu.core.chaos.schedule import Schedule, drawn, named

MEMBERS = ("server 0", "server 1", "worker 0", "worker 1", "worker 2")
PASSED = st.lists(st.tuples(st.sampled_from(Point), st.integers(0, 8)), max_size=40)
AT_POINTS = st.builds(
    Fault,
    st.sampled_from(FaultKind),
    st.just("worker 0"),
    st.sampled_from(Point),
    st.integers(0, 8) | st.none(),
)


@given(st.lists(AT_POINTS, max_size=6), PASSED)
def test_a_fault_is_due_once_when_its_point_is_passed_behind_its_step(
    faults: list[Fault], passed: list[tuple[Point, int]]
) -> None:
    schedule = Schedule(named(faults, MEMBERS, 0))
    seen = [schedule.passed(*each) for each in passed]
    for name, fault in named(faults, MEMBERS, 0).items():
        fits = [
            number
            for number, (point, _) in enumerate(passed)
            if point is fault.point
            and (fault.after_step is None or max(step for _, step in passed[: number + 1]) > fault.after_step)
        ]
        assert [number for number, due in enumerate(seen) if name in due] == fits[:1]
    happened = sum(map(len, seen))
    assert schedule.is_empty == (happened == len(faults))


def test_a_step_alone_stands_for_its_first_push() -> None:
    fault = Fault(FaultKind.KILL, "worker 0", after_step=2)
    schedule = Schedule({"a": fault})
    assert not schedule.passed(Point.PUSH, 2)
    assert not schedule.passed(Point.FETCH, 3)
    assert schedule.passed(Point.PUSH, 3) == {"a": fault}


@given(st.lists(st.floats(0, 1e6), max_size=8))
def test_times_come_in_their_order(times: list[float]) -> None:
    faults = [Fault(FaultKind.KILL, "worker 0", after_s=each) for each in times]
    assert [due for due, _, _ in Schedule(named(faults, MEMBERS, 0)).timed()] == sorted(times)
    assert not Schedule(named(faults, MEMBERS, 0)).passed(Point.PUSH, 9)


@given(st.integers(0, 2**63 - 1), st.integers(1, 5))
def test_a_member_is_drawn_by_seed_and_number_alone(seed: int, count: int) -> None:
    anybody = Fault(FaultKind.KILL, ANY, after_step=1)
    members = [each.member for each in named([anybody] * count, MEMBERS, seed).values()]
    assert set(members) <= set(MEMBERS)
    before = Fault(FaultKind.STOP, "worker 9", after_step=1)
    others = list(named([before, *[anybody] * (count - 1)], MEMBERS, seed).values())
    assert [each.member for each in others] == ["worker 9", *members[1:]]


def test_all_members_are_drawn_of_several_seeds() -> None:
    anybody = Fault(FaultKind.KILL, ANY, after_step=1)
    assert {named([anybody], MEMBERS, seed)["0-kill"].member for seed in range(60)} == set(MEMBERS)


def test_drawn_faults_are_every_so_often_to_all_members_alike() -> None:
    kinds = (FaultKind.KILL, FaultKind.DROP)
    found = [fault for _, fault in islice(drawn(kinds, MEMBERS, seed=3, every_s=2.0), 4000)]
    times = [fault.after_s or 0.0 for fault in found]
    assert all(before < after for before, after in pairwise(times))
    assert abs(times[-1] / len(times) - 2.0) < 0.15  # of 4000 gaps the mean has a deviation of 0.03
    assert len(list(takewhile(lambda each: each < 100.0, times))) > 20
    for of, expected in ((MEMBERS, 800), (kinds, 2000)):
        counts = np.array([sum(each in (fault.member, fault.kind) for fault in found) for each in of])
        assert np.all(abs(counts - expected) < 150)


@given(st.integers(0, 2**63 - 1))
def test_every_process_draws_the_same(seed: int) -> None:
    first, again = (list(islice(drawn((FaultKind.KILL,), MEMBERS, seed=seed, every_s=1.0), 9)) for _ in range(2))
    assert first == again
    assert len({name for name, _ in first}) == len(first)
