"""Stalls and standstills of a run, and who is to blame: pure, time comes in as an argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from taihu.core.coordination.membership.members import MemberId, MemberRecord, Progress, Role

# A first step compiles, and a model is written to a disk that may be slow: nobody can tell from outside.
_PATIENCE: Final = 10.0


class Standstill:
    """Whether anything in a run moves. A member that gets on says so with its heartbeats.

    Args:
        after_s: seconds after which a run that does not move stands still; ten times as many while a member is busy
            with what may take long.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._moved_s: float | None = None
        self._moves: dict[MemberId, tuple[object, ...]] = {}

    def heard(self, member: MemberId, progress: Progress, now: float) -> None:
        """Take in the progress of a member."""
        moves = progress.moves, progress.step, progress.tests, progress.busy_with
        if self._moves.get(member) != moves:
            self._moves[member] = moves
            self._moved_s = now

    def look(self, now: float, members: Mapping[MemberId, MemberRecord]) -> str:
        """The reason why a run of `members`, all of which have joined, does not get on; "" where it does."""
        if self._moved_s is None:
            self._moved_s = now
        workers = _at_work(members)
        if not all(record.progress.moves for _, record in workers):
            return ""  # who does not say when it moves may
        patience = _PATIENCE if any(record.progress.busy_with for _, record in workers) else 1.0
        still_s = now - self._moved_s
        if not workers or still_s <= self._after_s * patience:
            return ""
        return f"nothing has moved for {still_s:.0f} s: {_in_words(workers)}"


def stall_of(members: Mapping[MemberId, MemberRecord]) -> str:
    """The step that takes longer than the recent ones, and who waits for what in it; "" where none does.

    Who neither waits nor is done comes first: the others wait for it.
    """
    workers = _at_work(members)
    if any(record.progress.busy_with for _, record in workers):
        return ""
    late = [record.progress for _, record in workers if _is_late(record.progress)]
    if not late:
        return ""
    longest = max(late, key=lambda progress: progress.in_step_seconds)
    usual = min(progress.slow_after_seconds for progress in late)
    words = f"step {longest.step + 1} takes {longest.in_step_seconds:.1f} s, usually less than {usual:.1f}"
    return f"{words}: {_in_words(workers)}"


def _is_late(progress: Progress) -> bool:
    return 0 < progress.slow_after_seconds < progress.in_step_seconds


def _at_work(members: Mapping[MemberId, MemberRecord]) -> list[tuple[MemberId, MemberRecord]]:
    return [each for each in members.items() if each[0].role is Role.WORKER and not each[1].finished]


def _in_words(workers: Iterable[tuple[MemberId, MemberRecord]]) -> str:
    in_order = sorted(workers, key=lambda each: (bool(each[1].progress.waits_for), each[0].rank))
    return ", ".join(f"{member} {_doing(record.progress)}" for member, record in in_order)


def _doing(progress: Progress) -> str:
    if progress.waits_for:
        return f"waits for {progress.waits_for}"
    if progress.busy_with:
        return f"is busy with {progress.busy_with}"
    return f"has step {progress.step} behind it, and waits for nobody"
