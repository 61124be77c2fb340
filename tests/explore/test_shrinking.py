"""A failing case is made smaller while it still fails; and what processes that explore are told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.explore.campaign.shrinking import shrunk
from taihu.explore.campaign.work import Found, Smaller, Work

cases = st.builds(
    Smaller,
    faults=st.lists(st.sampled_from("abcde"), max_size=4),
    steps=st.integers(1, 6),
    workers=st.integers(1, 4),
    servers=st.integers(0, 3),
)


@given(cases, st.data())
def test_what_is_left_fails_and_nothing_smaller_does(case: Smaller, data: st.DataObject) -> None:
    needed = set(data.draw(st.lists(st.sampled_from(case.faults or [""]), max_size=2))) if case.faults else set[str]()
    steps, holds = data.draw(st.integers(1, case.steps or 1)), data.draw(st.integers(0, 300))

    def fails(smaller: Smaller) -> bool:
        enough = smaller.holds is None or smaller.holds >= holds
        return needed <= set(smaller.faults or ()) and (smaller.steps or 0) >= steps and enough

    least = shrunk(case, fails)
    assert fails(least)
    assert sorted(least.faults or ()) == sorted(needed)
    assert (least.steps, least.workers, least.holds) == (steps, 1, holds)


def test_a_case_that_needs_all_is_left_as_it_is() -> None:
    case = Smaller(["a"], 3, 2, 1)
    assert shrunk(case, lambda smaller: smaller == case) == case


@given(cases, st.lists(st.integers(0, 9)))
def test_work_and_outcomes_are_lines(case: Smaller, picked: list[int]) -> None:
    work = Work(3, 10, stride=2, picked=picked, tells=True, changes=[], smaller=case)
    assert Work.from_json(work.as_json()) == work
    assert list(work.seeds) == (picked or list(range(3, 23, 2)))
    found = Found(7, ["wrong"], ["seed 7"], [], ended_well=True, virtual_s=1.5, switches=3, digest="ab", real_s=0.1)
    assert Found.from_json(found.as_json()) == found
