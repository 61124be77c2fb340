"""Words about the members of a run, and the states that it is in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from taihu.core.base.errors import RecoveringError, RunError
from taihu.core.base.words import Line


class Role(Enum):
    """The role of a process."""

    SERVER = "server"
    WORKER = "worker"


class RunState(Enum):
    """The state of a run. STOPPED: it was asked to end before its time, and did so in order.

    RECOVERING: a member was lost; this generation of members is over, and all begin again from a checkpoint.
    """

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    RECOVERING = "recovering"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended, or at least this generation of its members."""
        return self not in (RunState.WAITING, RunState.RUNNING)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended: one that recovers has not."""
        return self.is_final and self is not RunState.RECOVERING


@dataclass(frozen=True)
class MemberId:
    """A worker by its rank, or a server by its index."""

    role: Role
    rank: int

    def __str__(self) -> str:
        return f"{self.role.value} {self.rank}"


@dataclass(frozen=True)
class Life:
    """A member in one life of its process, by which it is known until it ends."""

    member: MemberId
    incarnation: int


@dataclass(frozen=True)
class Begun:
    """A generation of members that may be joined.

    Attributes:
        generation: its number, 0 in a run that has one.
        step: that of the checkpoint from which it begins; 0 for none.
        compression: settings of it by key, each value as JSON, where the run has chosen them.
        is_trial: whether its steps are made to choose them.
        because: the reason of the choice, in one line; "" where an earlier life of the run has made it.
        follows: the reason for which the generation before it ended, in one line; "" of the first one.
        shared_out: the workers of each agent, in one line; "" where no agent runs any.
        servers: their number in it; 0 for that of the job.
    """

    generation: int
    step: int = 0
    compression: Mapping[str, str] = field(default_factory=dict)
    is_trial: bool = False
    because: Line = ""
    follows: Line = ""
    shared_out: Line = ""
    servers: int = 0


@dataclass(frozen=True)
class Progress:
    """The progress of a member; times are means over recent steps, `test_accuracy` is negative before the first test.

    `total_steps` is 0 of a script's own loop, which tells neither its losses nor its samples.

    A run that is not tested by accuracy has the name and value of its first metric in `test_metric` and `test_value`;
    `tests` is the number of tests so far. `threshold_drift_ratio` is the relative change of the threshold that was
    made anew last; `update_seconds` is a server's mean time of summing and updating one frame. `path` is what a
    worker's values take: shared memory (same-host), gRPC's streams (grpc) or connections beside them (tcp).

    `moves` grows with everything that the member gets on by; `waits_for` is what it waits for, "" where it waits for
    nobody; `busy_with` what it does that takes long without `moves`. `in_step_seconds` is the time since the step
    before ended; one that takes longer than `slow_after_seconds` is unlike the recent ones, 0 where these are few.

    A script tells of operations that all workers take part in, each at its own time: `begun` are the numbers of those
    that it has come to, by kinds, its backwards first; `waits_in` is the one that it waits in, "" where it does not.
    """

    step: int = 0
    total_steps: int = 0
    loss: float = 0.0
    test_accuracy: float = -1.0
    samples_per_second: float = 0.0
    step_seconds: float = 0.0
    compute_seconds: float = 0.0
    exchange_seconds: float = 0.0
    wait_seconds: float = 0.0
    bytes_sent_per_step: int = 0
    bytes_received_per_step: int = 0
    compress_seconds: float = 0.0
    selected_ratio: float = 1.0
    threshold_drift_ratio: float = 0.0
    update_seconds: float = 0.0
    test_metric: Line = ""
    test_value: float = 0.0
    tests: int = 0
    path: Line = ""
    moves: int = 0
    waits_for: Line = ""
    busy_with: Line = ""
    in_step_seconds: float = 0.0
    slow_after_seconds: float = 0.0
    begun: tuple[int, ...] = ()
    waits_in: Line = ""


@dataclass
class MemberRecord:
    """The record of one member. One that has `finished` ends with `exit_code`, where it has told that.

    One that `awaits_end` is there, and asks, until it has heard that the run has ended. `joining` of its calls have
    asked to join: it asks again over another connection where it has lost one, of which the coordinator hears later.
    """

    incarnation: int
    address: str
    last_seen_s: float
    progress: Progress = field(default_factory=Progress)
    finished: bool = False
    awaits_end: bool = False
    exit_code: int | None = None
    joining: int = 0
    parameters_sha256: str = ""


def error_of(state: RunState, reason: str) -> RunError | None:
    """The error for whoever waits for others in a state of the run; None where they come."""
    if state is RunState.RECOVERING:
        return RecoveringError(reason)
    return RunError(reason) if state is RunState.FAILED else None
