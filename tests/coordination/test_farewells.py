"""Workers that wait in vain, against a simulation of scripts that goes on for as long as anything can."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.coordination.membership.farewells import CrossedWaits, left_behind
from taihu.core.coordination.membership.members import MemberId, MemberRecord, Progress, Role

KINDS = range(3)
SCRIPTS = st.lists(st.lists(st.sampled_from(KINDS), max_size=5), min_size=2, max_size=4)


def played(scripts: list[list[int]]) -> list[int]:
    """The number of operations that each worker has begun when none can begin another one.

    An operation, the nth of its kind, lets a worker go on when all others have begun it.
    """
    begun = [0] * len(scripts)
    goes_on = True
    while goes_on:
        goes_on = False
        for rank, script in enumerate(scripts):
            done = [Counter(other[:count]) for other, count in zip(scripts, begun, strict=True)]
            is_free = not begun[rank] or all(
                each[script[begun[rank] - 1]] >= done[rank][script[begun[rank] - 1]] for each in done
            )
            if is_free and begun[rank] < len(script):
                begun[rank] += 1
                goes_on = True
    return begun


def members_of(scripts: list[list[int]], begun: list[int]) -> dict[MemberId, MemberRecord]:
    """The members of a run as they have told of themselves: who has come to the end of its script has finished."""
    counts = [Counter(script[:count]) for script, count in zip(scripts, begun, strict=True)]
    members = {}
    for rank, (script, count) in enumerate(zip(scripts, begun, strict=True)):
        last = script[count - 1] if count else None
        waits = last is not None and any(each[last] < counts[rank][last] for each in counts)
        progress = Progress(
            begun=tuple(counts[rank][kind] for kind in KINDS), waits_in=f"its {last}" if waits else ""
        )
        finished = not waits and count == len(script)
        members[MemberId(Role.WORKER, rank)] = MemberRecord(1, "", 9.0, progress, finished)
    return members


@settings(deadline=None, max_examples=300)
@given(SCRIPTS)
def test_who_waits_for_ever_is_found_and_nobody_else(scripts: list[list[int]]) -> None:
    begun = played(scripts)
    members = members_of(scripts, begun)
    crossed = CrossedWaits(2.0)
    assert crossed.look(0.0, members) == ""
    reason = left_behind(members) or crossed.look(8.0, members)
    assert bool(reason) == any(not record.finished for record in members.values()), (begun, reason)
    for record in members.values():
        assert record.finished or record.progress.waits_in


@settings(deadline=None, max_examples=300)
@given(SCRIPTS, st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_nobody_is_accused_while_somebody_computes(scripts: list[list[int]], stops: list[int]) -> None:
    """Alike scripts, of which each is somewhere on its way, always come to their ends."""
    script = scripts[0]
    begun = [min(stop, len(script)) for stop in stops]
    begun = [min(count, min(begun) + 1) for count in begun]
    members = members_of([script] * len(begun), begun)
    crossed = CrossedWaits(2.0)
    assert [left_behind(members), crossed.look(0.0, members), crossed.look(8.0, members)] == ["", "", ""]
