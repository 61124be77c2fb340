"""The agents of a run in the process that hosts its coordinator, over all generations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import structlog

from taihu.core.checkpoint.copies import Copies
from taihu.core.coordination.agents.attendance import Attendance, Attending
from taihu.core.coordination.membership.members import MemberId, Role, RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.shared import SharedMembership
from taihu.core.job import Job
from taihu.core.system.threads import Lock


class Agents:
    """An `Attendance` that threads share: those of a generation that is over may still answer.

    Attributes:
        copies: of what workers hold, as lost agents had it.
        digest: of the job's settings, which agents must share.
        held_s: the longest time that a call of an agent is held: who is not answered cannot call again.
    """

    def __init__(self, attendance: Attendance, digest: str, held_s: float) -> None:
        self.held_s = held_s
        self._attendance = attendance
        self.digest = digest
        self.copies = Copies()
        self._lock = Lock()

    @classmethod
    def of(cls, job: Job) -> Self:
        """Those of a run that begins; worker 0 of one without servers hosts them itself."""
        ranks = range(0 if job.servers else 1, job.world.workers)
        heartbeat_s = job.cluster.heartbeat_s
        attendance = Attendance(
            ranks,
            least=job.cluster.min_agents,
            silent_after_s=job.patience.answer_s,
            gone_after_s=heartbeat_s,
        )
        return cls(attendance, job.digest, heartbeat_s)

    @contextmanager
    def changing(self) -> Iterator[Attendance]:
        """The attendance, alone."""
        with self._lock:
            yield self._attendance

    def opens(self, coordinator: SharedMembership) -> None:
        """The coordinator of a generation answers from now on."""
        with coordinator.changing() as (_, now), self.changing() as attendance:
            attendance.opens(now)

    @property
    def all_know_end(self) -> bool:
        """Whether all agents know that the run has ended that hear of it from nobody else."""
        with self._lock:
            return self._attendance.all_know_end

    def closes(self) -> None:
        """The coordinator of a generation answers no more."""
        with self.changing() as attendance:
            attendance.closes()

    def seen(self, coordinator: SharedMembership) -> list[Attending]:
        """All that are there now."""
        with coordinator.changing() as (_, now), self.changing() as attendance:
            return attendance.agents(now)

    @property
    def shared_out(self) -> str:
        """The workers of each agent that has some, in one line."""
        with self._lock:
            return self._attendance.shared_out

    def settle(self) -> bool:
        """Have ranks change their agents, no generation going on; whether some do, or did since the last time."""
        with self._lock:
            return self._attendance.settle()

    def look(self, membership: Membership, now: float) -> None:
        """Find other agents for ranks of lost ones; the generation ends there, and where ranks are to move."""
        outcome, progress = membership.outcome, {}
        for member, record in membership.roster.workers.items():
            progress[member.rank] = record.progress
        with self._lock:
            if progress:
                step = max(each.step for each in progress.values())
                self._attendance.measured({rank: each.compute_seconds for rank, each in progress.items()}, step)
            lost = self._attendance.look(now)
            move = self._attendance.move(now, may_gain=outcome.recovers)
        for rank, agent in lost:
            structlog.get_logger().warning("agent lost", agent=agent, worker=rank)
            outcome.lost(MemberId(Role.WORKER, rank), f"agent {agent} is gone")
        # Where no step is known yet, one may have been made that nobody would keep.
        if move and outcome.state is RunState.RUNNING and outcome.makes_steps and not outcome.stop.reason:
            structlog.get_logger().info("moving workers", reason=move)
            outcome.ask_to_stop(move, goes_on=True)
