"""Workers that wait for what another one never comes to: pure, time comes in as an argument.

Scripts tell how many operations of each kind they have begun that all workers take part in. An operation ends when
all have begun it: whoever has begun more of a kind than another one waits for that one, sooner or later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from taihu.core.base.words import counted, listed
from taihu.core.coordination.membership.members import MemberId, MemberRecord, Role

_REMEDY: Final = "give all workers as many batches, or iterate in `with optimizer.join()`"

Worker = tuple[MemberId, MemberRecord]


def left_behind(members: Mapping[MemberId, MemberRecord]) -> str:
    """The reason why workers wait for one that has ended, who that is, and who waits in what; "" where none does.

    Who computes, or waits for others alone, is none of them: that may go on for long.
    """
    workers = _workers(members)
    ended = [each for each in workers if each[1].finished and each[1].progress.begun]
    waiting = _waiting(workers)
    for member, record in sorted(ended, key=lambda each: each[1].progress.begun):
        theirs = record.progress.begun
        for what in dict.fromkeys(other.progress.waits_in for _, other in waiting):
            behind = [
                (other, told.progress.begun)
                for other, told in waiting
                if told.progress.waits_in == what and _is_ahead(told.progress.begun, theirs)
            ]
            if behind:
                remedy = "" if record.exit_code or behind[0][1][0] <= theirs[0] else f"; {_REMEDY}"
                return f"{member} {_ended(record)} while {_wait([other for other, _ in behind], what)}{remedy}"
    return ""


@dataclass(frozen=True)
class _Cycle:
    """Workers in turn of which each waits for the next one, and all that they had begun then."""

    members: tuple[MemberId, ...]
    begun: tuple[tuple[int, ...], ...]


class CrossedWaits:
    """Finds workers of which each waits for another one of them: no matter how long, none goes on.

    Args:
        sure_after_s: seconds for which they have to be the same: what one has told may be older than what another
            has.
    """

    def __init__(self, sure_after_s: float) -> None:
        self._sure_after_s = sure_after_s
        self._seen: _Cycle | None = None
        self._since_s = 0.0

    def look(self, now: float, members: Mapping[MemberId, MemberRecord]) -> str:
        """Members that wait for each other, and in what, once that is certain; "" before."""
        found = _cycle(_waiting(_workers(members)))
        if found != self._seen:
            self._seen, self._since_s = found, now
        # Each has told it again since then.
        if found is None or now - self._since_s < self._sure_after_s:
            return ""
        if any(members[member].last_seen_s <= self._since_s for member in found.members):
            return ""
        each = [f"{member} in {members[member].progress.waits_in}" for member in found.members]
        return (
            f"{listed(each)} wait for each other: have all workers of a script make the same calls in the same order"
        )


def _workers(members: Mapping[MemberId, MemberRecord]) -> list[Worker]:
    return [each for each in members.items() if each[0].role is Role.WORKER]


def _waiting(workers: Iterable[Worker]) -> list[Worker]:
    return [each for each in workers if each[1].progress.waits_in and not each[1].finished]


def _is_ahead(begun: Sequence[int], of: Sequence[int]) -> bool:
    """Whether more of some kind has been begun."""
    return any(own > theirs for own, theirs in zip_longest(begun, of, fillvalue=0))


def _cycle(waiting: Sequence[Worker]) -> _Cycle | None:
    """Workers that wait for each other in a ring, of those that wait, if there are such."""
    # Most have begun the same: one of them stands for all.
    begun: dict[tuple[int, ...], MemberId] = {}
    for member, record in sorted(waiting, key=lambda each: each[0].rank):
        begun.setdefault(record.progress.begun, member)
    cleared: set[tuple[int, ...]] = set()
    for first in begun:
        path = [first]
        while path:
            followed = next((each for each in begun if each not in cleared and _is_ahead(path[-1], each)), None)
            if followed is None:
                cleared.add(path.pop())
            elif followed in path:
                ring = path[path.index(followed) :]
                return _Cycle(tuple(begun[each] for each in ring), tuple(ring))
            else:
                path.append(followed)
    return None


def _ended(record: MemberRecord) -> str:
    code = "" if record.exit_code is None else f" (exit code {record.exit_code})"
    backwards = record.progress.begun[0]
    when = f"after {counted(backwards, 'backward')}" if backwards else "before its first backward"
    return f"has ended {when}{code}"


def _wait(members: Sequence[MemberId], what: str) -> str:
    ranks = [str(member.rank) for member in sorted(members, key=lambda member: member.rank)]
    if len(ranks) == 1:
        return f"worker {ranks[0]} waits in {what}"
    return f"workers {listed(ranks)} wait in {f'their {what[4:]}' if what.startswith('its ') else what}"
