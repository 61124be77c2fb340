"""Of several lives in one place, the one that took part is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from taihu.core.job import Job
from taihu.core.process.entry import EXIT_INTERRUPTED
from taihu.explore.tasks import Process
from taihu.explore.world.members import Member, took_part


def life(code: int, ended_s: float, **facts: bool) -> Member:
    member = Member("worker 1", Job(), Process("worker 1", 0), Path("model"))
    member.code, member.ended_s = code, ended_s
    member.results = {} if facts.pop("told", False) else None
    for name, value in facts.items():
        setattr(member, name, value)
    return member


LIVES = {
    "told results": life(0, 1.0, told=True),
    "ended well": life(0, 2.0),
    "stopped": life(EXIT_INTERRUPTED, 3.0, saw_end=True),
    "was to leave, and was there when the run was stopped": life(EXIT_INTERRUPTED, 4.0, leaves=True, saw_end=True),
    "left": life(EXIT_INTERRUPTED, 6.0, leaves=True),
    "found nobody": life(2, 5.0),
}


@pytest.mark.parametrize(
    ("taken", "others"),
    [
        ("told results", ["ended well", "found nobody"]),
        ("ended well", ["stopped", "found nobody"]),
        ("stopped", ["found nobody"]),
        # A launcher had brought others in its place, which found nobody.
        ("was to leave, and was there when the run was stopped", ["found nobody"]),
        ("left", ["found nobody"]),
    ],
)
def test_the_one_that_took_part_is_judged(taken: str, others: list[str]) -> None:
    for order in ([taken, *others], [*others, taken]):
        assert took_part([LIVES[name] for name in order]) is LIVES[taken]


def test_of_those_who_failed_the_last_one_is_judged() -> None:
    """One that finds its place taken ends at once."""
    first, last = life(2, 1.0), life(2, 9.0)
    assert took_part([first, last]) is took_part([last, first]) is last
    # One that left had its successor judged.
    assert took_part([life(EXIT_INTERRUPTED, 1.0, leaves=True), last]) is last
