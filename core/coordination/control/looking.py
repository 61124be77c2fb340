"""Asks of whoever looks on a run, or wants it to stop: these need no arrays, as commands start with them."""

from __future__ import annotations

from dataclasses import dataclass

from taihu.core.base.words import Line
from taihu.core.coordination.control.control import Ask
from taihu.core.coordination.membership.members import MemberId, Progress, RunState


@dataclass(frozen=True)
class MemberStatus:
    """One member that has joined: where others reach it, and where it is."""

    member: MemberId
    address: Line = ""
    progress: Progress = Progress()  # noqa: RUF009 - it cannot be changed
    seconds_since_heartbeat: float = 0.0
    finished: bool = False


@dataclass(frozen=True)
class AgentStatus:
    """One agent: the ranks of the workers that it runs, or is to run, and the seconds since its last call.

    `work_seconds` is the work of one of its workers in a step, if it ran that one alone; 0 as long as that is not
    measured.
    """

    name: Line
    ranks: tuple[int, ...]
    seconds_since_call: float
    leaves: bool
    work_seconds: float = 0.0


@dataclass(frozen=True)
class Change:
    """The end of a generation of members: its reason, and the step behind which the next one began."""

    reason: Line
    after_step: int


@dataclass(frozen=True)
class RunStatus:
    """All that the coordinator tells of a run.

    Attributes:
        job: its name.
        state: that it is in.
        reason: of its end, "" before.
        members: those that have joined.
        servers: the number of places for servers.
        workers: the number of those for workers.
        waiting_seconds: since the first member joined, while others are missing.
        checkpoint_problem: why the newest checkpoint is not complete; "" if it is, or may be yet.
        stall: the step that takes unusually long, and who waits for what; "" where none does.
        agents: those that are there.
        generations: of members so far, this one among them.
        changes: the ends of the last ones, the oldest first.
    """

    job: Line
    state: RunState
    reason: Line = ""
    members: tuple[MemberStatus, ...] = ()
    servers: int = 0
    workers: int = 0
    waiting_seconds: float = 0.0
    checkpoint_problem: Line = ""
    stall: Line = ""
    agents: tuple[AgentStatus, ...] = ()
    generations: int = 1
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class GetStatus(Ask[RunStatus]):
    """The status of the run is asked for; by anybody who is let in, at any time."""


@dataclass(frozen=True)
class Stop(Ask[RunState]):
    """`job` is to end in order, for `reason`; the state that it is in then: FAILED where there is nothing to save.

    Refused with StaleError where the coordinator has another job.
    """

    job: str
    reason: Line
