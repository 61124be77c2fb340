"""The signs of life of members, and who is missed: pure, time comes in as an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

from taihu.core.coordination.membership.admission import Admission
from taihu.core.coordination.membership.farewells import CrossedWaits, left_behind
from taihu.core.coordination.membership.members import MemberId, Progress, RunState
from taihu.core.coordination.membership.outcome import Outcome
from taihu.core.coordination.membership.roster import Roster
from taihu.core.coordination.membership.standstill import Standstill, stall_of
from taihu.core.job import Job
from taihu.core.job.signs_of_life import seconds_between_signs

TICK_S: Final = 0.2
"""Seconds from one look at who is silent to the next."""

# Who has not been heard of for so many heartbeats leaves its place to another process that asks for it.
_REPLACED_AFTER: Final = 4
# Who waits for each other is sure to when it is the same for so many.
_SURE_AFTER: Final = 4


@dataclass(frozen=True)
class Waits:
    """The times that members are waited for, in seconds.

    Attributes:
        lost_after_s: silence after which a member is lost.
        join_timeout_s: from the first member that joins to the last.
        heartbeat_s: from one sign of life to the next.
        still_after_s: without progress of any member, after which all begin again.
    """

    lost_after_s: float
    join_timeout_s: float
    heartbeat_s: float = 0.5
    still_after_s: float = math.inf

    @classmethod
    def of(cls, job: Job) -> Self:
        """Those of a job's members."""
        cluster = job.cluster
        between_s = seconds_between_signs(job)
        return cls(cluster.lost_after_s, cluster.connect_timeout_s, between_s, job.patience.still_after_s)

    @property
    def replaced_after_s(self) -> float:
        """Silence after which a member leaves its place to another process that asks for it."""
        return _REPLACED_AFTER * self.heartbeat_s


class Liveness:
    """Hears members, and ends a run or a generation in which one is silent, missing, or waited for in vain."""

    def __init__(self, roster: Roster, admission: Admission, outcome: Outcome, waits: Waits) -> None:
        self._roster = roster
        self._admission = admission
        self._outcome = outcome
        self._waits = waits
        self._standstill = Standstill(waits.still_after_s)
        self._crossed_waits = CrossedWaits(_SURE_AFTER * waits.heartbeat_s)

    def heartbeat(self, member: MemberId, incarnation: int, progress: Progress, *, job: str, now: float) -> None:
        """Note that a member lives and where it is.

        Raises:
            StaleError: no such member with this incarnation has joined.
        """
        record = self._roster.record(member, incarnation, job=job)
        record.last_seen_s = now
        if not record.finished:  # else it has been on its way for longer than the last word
            record.progress = progress
        self._standstill.heard(member, progress, now)

    def look(self, now: float) -> None:
        """Fail the run when a member has been silent, or missing, for too long, or others wait for it in vain.

        Workers are not silent while addresses of peers are not known.
        """
        self._admission.hold_workers(now)
        lost_after_s = self._waits.lost_after_s
        silent = [m for m, record in self._roster.members.items() if now - record.last_seen_s > lost_after_s]
        # One that the others wait for may end the run by its silence.
        misses = self._outcome.fell_silent if self._outcome.state.is_final else self._outcome.lost
        for member in silent:
            misses(member, f"no heartbeat for {lost_after_s:g} s")
        members = self._roster.members
        if self._outcome.goes_on:
            if in_vain := left_behind(members) or self._crossed_waits.look(now, members):
                self._outcome.fail(in_vain)
            elif still := self._standstill.look(now, members):
                self._outcome.end_generation(still)
        if self._admission.waiting_s(now) > self._waits.join_timeout_s:
            names = ", ".join(map(str, self._roster.missing()))
            self._outcome.fail(
                f"{names} did not join within {self._waits.join_timeout_s:g} s; start all members of the job"
            )

    @property
    def stall(self) -> str:
        """The step that takes unusually long, and who waits for what; "" where none does."""
        return stall_of(self._roster.members) if self._outcome.state is RunState.RUNNING else ""
