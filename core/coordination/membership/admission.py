"""The way into a run: who may join, and what all must have alike. Pure, time comes in as an argument."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from taihu.core.base.errors import FinishedError, RecoveringError, RunError, StaleError
from taihu.core.coordination.membership.agreement import Agreement
from taihu.core.coordination.membership.members import MemberId, MemberRecord, Role, RunState
from taihu.core.coordination.membership.outcome import Outcome
from taihu.core.coordination.membership.roster import Roster
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength

# Processes that ask for a place; who asks once and never again is forgotten.
_MOST_ASKING: Final = 1024


class Admission:
    """Admits members to their places.

    Args:
        roster: of the places.
        outcome: of the run.
        alike: what all must have alike.
        generation: the number of this generation.
        replaced_after_s: who has not been heard of for so long leaves its place to another process that asks for it.
        layout_follows: workers join without their layers and bring them later.

    Attributes:
        generation: the number.
    """

    def __init__(
        self,
        roster: Roster,
        outcome: Outcome,
        alike: Agreement,
        *,
        generation: int,
        replaced_after_s: float,
        layout_follows: bool,
    ) -> None:
        self.generation = generation
        self._alike = alike
        self._roster = roster
        self._outcome = outcome
        self._replaced_after_s = replaced_after_s
        self._layout_follows = layout_follows
        self._first_join_s: float | None = None
        self._asked_s: dict[tuple[MemberId, int], float] = {}

    def admits(self, member: MemberId, incarnation: int, *, job: str, now: float) -> bool:
        """Whether a process may join as `member` now; if not, it is to ask again.

        One that asks for the place of a member that has not been heard of for some heartbeats replaces it, for which
        a new generation begins.

        Raises:
            ConfigError: the rank is outside the world.
            StaleError: another job, or the place is taken by a process that lives.
            FinishedError: the run has finished.
            RunError: the run has ended otherwise.
        """
        self._roster.check_place(member, job)
        state, reason = self._outcome.state, self._outcome.reason
        if state is RunState.RECOVERING:
            return False
        if state.is_final:
            if state is RunState.FINISHED:
                self._replaces(member, incarnation, now)
                raise FinishedError(f"{member}: the run has finished, nothing is left to do")
            raise RunError(f"the run has {state.value}{f': {reason}' if reason else ''}")
        record = self._roster.members.get(member)
        if record is None or record.incarnation == incarnation:
            return True
        if len(self._asked_s) >= _MOST_ASKING and (member, incarnation) not in self._asked_s:
            del self._asked_s[next(iter(self._asked_s))]
        asked_s = self._asked_s.setdefault((member, incarnation), now)
        if record.last_seen_s > asked_s + self._replaced_after_s:
            raise _taken(member, job)
        if now - record.last_seen_s > self._replaced_after_s:
            self._outcome.lost(member, "another process has taken its place")
        return False

    def withdraw(self, member: MemberId, incarnation: int) -> None:
        """A call to join has ended. The last one of a process: nobody knows of it yet, and another may come."""
        record = self._roster.members.get(member)
        is_waiting = self._outcome.state is RunState.WAITING
        if is_waiting and record is not None and record.incarnation == incarnation:
            record.joining -= 1
            if not record.joining:
                del self._roster.members[member]
                self._roster.withdrawn.add((member, incarnation))

    def join(
        self,
        member: MemberId,
        incarnation: int,
        *,
        job: str,
        digest: str,
        now: float,
        address: str = "",
        layout: Layout | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        length: RunLength | None = None,
        generation: int = 0,
    ) -> None:
        """Admit a member; the first worker's layout and length become the run's. The same incarnation may join again.

        `settings` are those behind `digest`, by key, to say which differ.

        Raises:
            ConfigError: the rank is outside the world, or the member's settings or data differ.
            ModelError: the worker's layers differ from the run's.
            RecoveringError: the member was to join an earlier generation.
            StaleError: another job, or the rank is taken by another live process.
        """
        self._roster.check_place(member, job)
        is_late = generation != self.generation or self._outcome.state is RunState.RECOVERING
        # Who was told of an earlier generation has the settings of that one.
        if not generation or not is_late:
            self._alike.check_settings(str(member), digest, settings)
        if is_late:
            raise RecoveringError(f"{member} was to join members that begin again from a checkpoint now")
        known = self._roster.members.get(member)
        if known is not None and known.incarnation != incarnation:
            raise _taken(member, job)
        if length is not None:
            self._alike.check_length(str(member), length)
        if member.role is Role.WORKER and (layout is not None or not self._layout_follows):
            self._alike.check_layout(str(member), layout)
        if known is None:
            self.hold_workers(now)
            # Its connection may have broken, and it asks over another one.
            self._roster.withdrawn.discard((member, incarnation))
            known = self._roster.members[member] = MemberRecord(incarnation, address, now)
        known.joining += 1
        if self._first_join_s is None:
            self._first_join_s = now
        if self._outcome.state is RunState.WAITING and not self._roster.missing():
            self._outcome.begin()

    def bring_layout(
        self, member: MemberId, incarnation: int, layout: Layout, updates: UpdateRules | None = None, *, job: str
    ) -> None:
        """A worker that has joined says which layers it exchanges; the first one's become the run's.

        So do its `updates`, the optimizer of a script that servers carry out.

        Raises:
            ConfigError: its optimizer differs from the run's.
            ModelError: they differ from the run's.
            StaleError: no such member with this incarnation has joined.
        """
        self._roster.record(member, incarnation, job=job)
        self._alike.check_updates(str(member), updates, layout)
        self._alike.check_layout(str(member), layout)

    def told(self, member: MemberId, incarnation: int) -> None:
        """A member's call to join is answered with the run's failure: it takes no part, and says no more.

        It may have hung up, and another process may be waiting in its place.
        """
        record = self._roster.members.get(member)
        if record is not None and record.incarnation == incarnation:
            record.finished = True

    def waiting_s(self, now: float) -> float:
        """Time since the first member joined, while others are missing."""
        if self._outcome.state is not RunState.WAITING or self._first_join_s is None:
            return 0.0
        return now - self._first_join_s

    def hold_workers(self, now: float) -> None:
        """A worker's call to join is held until every peer is there; it cannot send heartbeats before."""
        if self._roster.peer_addresses() is not None:
            return
        for record in self._roster.workers.values():
            record.last_seen_s = now
        # A call that is held is no sign of life, which whoever asks for its place waits for: a host that has lost its
        # power leaves it as it was.
        for asking in self._asked_s:
            if asking[0].role is Role.WORKER:
                self._asked_s[asking] = now

    def _replaces(self, member: MemberId, incarnation: int, now: float) -> None:
        """Somebody is told of the end in the place of a process that is gone."""
        record = self._roster.members.get(member)
        if record is None or record.incarnation == incarnation:
            return
        if now - record.last_seen_s > self._replaced_after_s:
            record.finished, record.awaits_end = True, False


def _taken(member: MemberId, job: str) -> StaleError:
    return StaleError(f"{member} has already joined job {job!r}; give every process a rank of its own")
