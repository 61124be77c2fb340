"""A run is started again at most so often within an hour, after pauses that grow where it gets no further."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.coordination.restarts import Restarts


def test_pauses_grow_to_a_bound_where_a_run_gets_no_further() -> None:
    restarts = Restarts(100, longest_s=30.0)
    assert [restarts.pause_s(0.0, 40) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert [restarts.pause_s(0.0, step) for step in (60, 80, 80, 100)] == [0.5, 0.5, 1.0, 0.5]


def test_each_waits_for_its_own_restarts() -> None:
    restarts = Restarts(100, first_s=1.0, longest_s=5.0)
    assert [restarts.pause_s(0.0, 40, "a") for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    assert [restarts.pause_s(0.0, 40, "b") for _ in range(2)] == [1.0, 2.0]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_there_are_no_more_than_were_allowed(most: int) -> None:
    restarts = Restarts(most, longest_s=30.0)
    allowed = [restarts.pause_s(now, int(now)) is not None for now in (0.0, 1.0, 2.0, 3.0, 4.0)]
    assert sum(allowed) == most
    assert allowed == sorted(allowed, reverse=True)


def test_restarts_of_an_hour_ago_are_forgotten() -> None:
    restarts = Restarts(2, longest_s=30.0)
    assert [restarts.pause_s(now, 7) for now in (0.0, 1800.0, 3599.0)] == [0.5, 1.0, None]
    assert restarts.pause_s(3601.0, 8) == 0.5


@given(st.integers(0, 5), st.lists(st.floats(0.0, 2000.0), max_size=40))
def test_no_hour_has_more(most: int, gaps: list[float]) -> None:
    restarts, now, made = Restarts(most, longest_s=30.0), 0.0, []
    for step, gap in enumerate(gaps):
        now += gap
        if restarts.pause_s(now, step) is not None:
            made.append(now)
    assert all(sum(start <= each < start + 3600.0 for each in made) <= most for start in made)
