"""Asks of members and agents, and their answers; `taihu.core.coordination.control.control` has the rules of all.

Where nothing else is said, a member that has not joined, or not in this life, is refused with StaleError, as is one
of another job; a rank outside the world with ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from taihu.core.base.words import Line
from taihu.core.checkpoint.files import PartFile
from taihu.core.checkpoint.gathering import WrittenPart
from taihu.core.checkpoint.held_steps import Label
from taihu.core.coordination.control.control import Ask
from taihu.core.coordination.membership.members import Begun, Life, Progress, RunState
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.planner.profile import Profile


class LeftOut(NamedTuple):
    """A part of a held step that cannot be written, and the reason in one line."""

    label: Label
    why: Line


class Again(NamedTuple):
    """To be asked again soon; before that, the part of the step that is `wanted` is to be written."""

    wanted: Label | None = None


@dataclass(frozen=True)
class Begin(Ask[Begun | Again]):
    """This process would join, and go on from where the run does.

    Refused with StaleError where the place is taken by a process that lives, FinishedError where the run has
    finished, RunError where it has ended otherwise.

    Attributes:
        held: steps that its place holds in memory, and that the run could go on from.
        part: the part that was wanted before.
        agent: the life of that one which runs this process, 0 for none.
        settings_digest: SHA-256 over the settings that all members must share.
    """

    job: str
    member: Life
    settings_digest: str
    held: frozenset[Label] = frozenset()
    part: WrittenPart | LeftOut | None = None
    agent: int = 0


@dataclass(frozen=True)
class Peers:
    """The addresses of servers by index and, where workers exchange with each other, of workers by rank.

    `worker_incarnations` are the lives of these workers.
    """

    server_addresses: tuple[str, ...] = ()
    worker_addresses: tuple[str, ...] = ()
    worker_incarnations: tuple[int, ...] = ()


@dataclass(frozen=True)
class Join(Ask[Peers]):
    """This process joins; a worker is answered when everybody is there whom it exchanges with.

    Refused with ConfigError or ModelError where it has other settings, data or layers than the run, StaleError where
    the rank is taken, RecoveringError where its `generation` is over, PeerUnreachableError where others do not come.

    Attributes:
        address: where workers reach it; "" where they do not.
        layout: the layers that a worker exchanges; None where `BringLayout` follows.
        settings: those behind the digest by key, each as JSON: to tell which differ.
        length: of the run by a worker's data; None where there are none.
        generation: that `Begin` told; 0 in a run that does not recover.
        frames: the number of the form of its frames; 0 of a process that tells none.
    """

    job: str
    member: Life
    settings_digest: str
    address: Line = ""
    layout: Layout | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    length: RunLength | None = None
    generation: int = 0
    frames: int = 0


@dataclass(frozen=True)
class Vouch(Ask[None]):
    """Whoever calls `member` says that it is this `caller`; refused with StaleError where that is no member."""

    job: str
    member: Life
    caller: Life


@dataclass(frozen=True)
class BringLayout(Ask[None]):
    """These layers a worker exchanges, and by these `updates` servers carry its optimizer out.

    Refused with ConfigError or ModelError where others have brought other ones.
    """

    job: str
    member: Life
    layout: Layout
    updates: UpdateRules | None = None


@dataclass(frozen=True)
class Heard:
    """The coordinator's answer to a sign of life.

    Attributes:
        state: of the run.
        reason: of its end.
        clock_s: the coordinator's monotonic clock.
        stop_reason: "" where nobody wants the run to stop.
        last_step: behind which it stops; None while that is not fixed.
        goes_on: it does so behind that step, with another process in the place of the one that leaves.
    """

    state: RunState
    reason: Line
    clock_s: float
    stop_reason: Line
    last_step: int | None
    goes_on: bool


@dataclass(frozen=True)
class Heartbeat(Ask[Heard]):
    """This member lives, and has come so far.

    Attributes:
        wants_stop: why it wants the run to stop; "" where it does not.
        known_last_step: that it has learnt; None for none.
        leaves: it asks for no more than to leave.
    """

    job: str
    member: Life
    progress: Progress
    wants_stop: Line = ""
    known_last_step: int | None = None
    leaves: bool = False


@dataclass(frozen=True)
class GetPlan(Ask[Plan]):
    """The plan is asked for; answered when the first worker has brought its layers."""

    job: str
    member: Life


@dataclass(frozen=True)
class ReportSteps(Ask[Plan]):
    """A worker's measurements until `step`; answered when all have brought theirs, with the plan of the next step."""

    job: str
    member: Life
    step: int
    steps: tuple[StepMeasurement, ...]


@dataclass(frozen=True)
class FixLastStep(Ask[int]):
    """Worker 0 stands behind `step`, and the run is to stop: the last step, once all others know it."""

    job: str
    member: Life
    step: int


class Decision(NamedTuple):
    """Whether the state between a step and the next one is kept, and the step behind which workers ask again."""

    keep: bool
    next_step: int


@dataclass(frozen=True)
class DecideCheckpoint(Ask[Decision]):
    """A worker stands behind `step`, where all ask whether its state is kept; none follows a step that `is_last`."""

    job: str
    member: Life
    step: int
    is_last: bool = False


@dataclass(frozen=True)
class Stored(Ask[None]):
    """This member's part of the checkpoint of `step` is durable; with `left_out` it is none, for that reason."""

    job: str
    member: Life
    step: int
    file: PartFile | None = None
    left_out: Line = ""


@dataclass(frozen=True)
class Copy(Ask[None]):
    """The part `of` a step that this worker alone holds, as a file has it; with `stays` that of later ones, too."""

    job: str
    member: Life
    of: Label
    part: bytes
    stays: bool


@dataclass(frozen=True)
class Compare(Ask[None]):
    """The hash of a worker's parameters behind `step`: the run fails where those of all differ."""

    job: str
    member: Life
    step: int
    parameters_sha256: Line


class End(NamedTuple):
    """The state of a run, and the reason of its end where it has ended."""

    state: RunState
    reason: Line


@dataclass(frozen=True)
class Finish(Ask[End]):
    """This member has done its part, or fails.

    Attributes:
        progress: its last; None where it stands as told before.
        parameters_sha256: over a worker's final parameters.
        failure: why it fails; "" where it is done.
        until_end: the answer is to wait for the end of the run.
        has_lost: it fails as it has lost another member, and would begin again.
        exit_code: of its process; None where that is not known.
        has_heard: no more than that it knows of the end: nobody need wait for it.
    """

    job: str
    member: Life
    progress: Progress | None = None
    parameters_sha256: Line = ""
    failure: Line = ""
    until_end: bool = False
    has_lost: bool = False
    exit_code: int | None = None
    has_heard: bool = False


@dataclass(frozen=True)
class Known:
    """The present plan and the costs that it was made from, as far as there are any."""

    plan: Plan | None = None
    profile: Profile | None = None


@dataclass(frozen=True)
class GetProfile(Ask[Known]):
    """The costs of a step are asked for; by anybody who is let in."""


@dataclass(frozen=True)
class Assigned:
    """The ranks of the workers that an agent is to run, how the run is, and what it waits for before it begins."""

    ranks: tuple[int, ...]
    state: RunState
    reason: Line
    awaited: Line


@dataclass(frozen=True)
class Attend(Ask[Assigned]):
    """An agent is there, `runs` these ranks, and wants none where it `leaves`; answered when it is to run others.

    Where nothing changes it is answered in a while. Refused with StaleError of another job, and ConfigError where it
    has other settings, where the run takes no agents, or no more of them.
    """

    job: str
    agent: int
    name: Line
    settings_digest: str
    runs: tuple[int, ...] = ()
    leaves: bool = False


@dataclass(frozen=True)
class Seated:
    """The place of a server that joined, 0 for none, and how the run is."""

    index: int
    state: RunState
    reason: Line


@dataclass(frozen=True)
class Seat(Ask[Seated]):
    """A server without a rank is there, in the place `index` of the run; answered when it has another one.

    Where nothing changes it is answered in a while. Refused with StaleError of another job, and ConfigError where it
    has other settings, where no servers may join, or no more of them.

    Attributes:
        life: of its process.
        name: as people know it.
        settings_digest: SHA-256 over the settings that all members must share.
        index: its place; 0 for none.
    """

    job: str
    life: int
    name: Line
    settings_digest: str
    index: int = 0


ALL: Final = (
    *(Begin, Join, Vouch, BringLayout, Heartbeat, GetPlan, ReportSteps, FixLastStep, DecideCheckpoint),
    *(Stored, Copy, Compare, Finish, GetProfile, Attend, Seat),
)
"""Asks of members and agents."""
