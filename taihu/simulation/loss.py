"""A member that is lost while a job runs, and comes back: what that costs, on the virtual clock.

Its host falls silent. The coordinator's `Membership` gives it up, as it does in a run. Then, or when the member is
back if that is later, all workers give up what is under way by `StepProtocol.abort`, and replay the step that not all
of them have finished with a higher attempt, from its forward on; servers go on behind the step before, as with what
they had saved. Today's daemons end the run in place of that: what is here is what their step protocol offers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from taihu.core.base.errors import ConfigError
from taihu.core.coordination.membership.agreement import Agreement
from taihu.core.coordination.membership.liveness import TICK_S, Waits
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.roster import Roster
from taihu.core.job import Job
from taihu.core.job.signs_of_life import seconds_between_signs
from taihu.core.model.layout import Layout
from taihu.core.planner.profile import Profile
from taihu.core.trace.parts import TracePart
from taihu.simulation.compute import Compute
from taihu.simulation.costs import plan_of
from taihu.simulation.members import Members
from taihu.simulation.placement import Placement
from taihu.simulation.servers import SimulatedServer
from taihu.worker.exchange.step_rules import rules_of

_ATTEMPT: Final = 1
_STEPS_BEHIND: Final = 2
_ENDLESS: Final = 10**9
# The stage of ZeRO in which no parameters stay.
_FETCHES: Final = 3


@dataclass(frozen=True)
class Loss:
    """A member whose host falls silent `at_s` seconds after the first step began, and is back `restart_s` later."""

    member: MemberId
    at_s: float
    restart_s: float


@dataclass(frozen=True)
class Recovery:
    """The way of a run past a loss; instants in seconds since the first step began.

    Attributes:
        loss: of whom, and when.
        step: that was under way for it.
        noticed_s: when it was given up, for `reason`.
        resumed_s: when the workers gave up what was under way.
        replayed: the step that they began again.
        attempt: its number.
        seconds_lost: by which later steps end later than without the loss.
        parts: what all processes recorded, where they do.
    """

    loss: Loss
    step: int
    noticed_s: float
    reason: str
    resumed_s: float
    replayed: int
    attempt: int
    seconds_lost: float
    parts: tuple[TracePart, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The recovery as results show it."""
        return {
            "member": str(self.loss.member),
            "at_seconds": self.loss.at_s,
            "restart_seconds": self.loss.restart_s,
            "step": self.step,
            "noticed_seconds": self.noticed_s,
            "reason": self.reason,
            "resumed_seconds": self.resumed_s,
            "replayed_step": self.replayed,
            "attempt": self.attempt,
            "seconds_lost": self.seconds_lost,
        }


def simulate_loss(  # noqa: PLR0917 - as `simulate_job`
    job: Job,
    layout: Layout,
    compute: Compute,
    placement: Placement,
    profile: Profile | None,
    loss: Loss,
    *,
    traced: bool = False,
) -> Recovery:
    """Simulate a job from its first step until two steps behind the one that is replayed; see `simulate_job`.

    Raises:
        ConfigError: the job cannot be simulated, has no such member, or cannot go on without it.
    """
    _check(job, loss.member)
    apart = replace(placement, distinct=True)
    own = _Losing(job, Members(job, layout, compute, apart, profile, traced=traced), loss)
    recovery = own.run()
    undisturbed = Members(job, layout, compute, apart, profile)
    undisturbed.join(plan_of(job, undisturbed.layout, undisturbed.costs), last_step=0)
    undisturbed.train(1, recovery.replayed + _STEPS_BEHIND)
    ends = [max(worker.records[-1].end_s for worker in members.workers) for members in (own.members, undisturbed)]
    return replace(recovery, seconds_lost=ends[0] - ends[1], parts=own.members.parts)


def noticed(job: Job, loss: Loss, step: int) -> tuple[float, str]:
    """The instant at which the coordinator gives up a member that falls silent during `step`, and its reason.

    All members give signs of life at their pace since the first step began.
    """
    cluster, between_s = job.cluster, seconds_between_signs(job)
    roster = Roster(job.name, servers=job.world.servers, workers=job.world.workers)
    waits = Waits(cluster.lost_after_s, cluster.connect_timeout_s)
    members = Membership(roster, Agreement(str(roster.host), "", {}), waits, layout_follows=True)
    last_beat = between_s * math.floor(loss.at_s / between_s)
    everyone = roster.missing()
    for member in everyone:
        members.admission.join(member, 1, job=job.name, digest="", now=last_beat)
        members.liveness.heartbeat(member, 1, Progress(step=step - 1), job=job.name, now=last_beat)
    ticks, beats = 0, 0
    while members.outcome.state is RunState.RUNNING:
        ticks += 1
        now = last_beat + TICK_S * ticks
        if now >= last_beat + (beats + 1) * between_s:
            beats += 1
            for member in everyone:
                if member != loss.member:
                    members.liveness.heartbeat(member, 1, Progress(step=step - 1), job=job.name, now=now)
        members.liveness.look(now)
    return now, members.outcome.reason


class _Losing:
    """A job whose member is lost: what happens when."""

    def __init__(self, job: Job, members: Members, loss: Loss) -> None:
        self.members = members
        self._job = job
        self._loss = loss
        self._plan = plan_of(job, members.layout, members.costs)
        self._recovery: Recovery | None = None

    def run(self) -> Recovery:
        """All of it; returns what was done when."""
        members = self.members
        members.join(self._plan, last_step=0)
        members.queue.at(self._loss.at_s, self._lose)
        members.train(1, _ENDLESS)
        assert self._recovery is not None  # noqa: S101 - nothing else ends the steps
        return self._recovery

    def _lose(self) -> None:
        loss, members, lost = self._loss, self.members, self._loss.member
        is_worker = lost.role is Role.WORKER
        step = members.workers[lost.rank if is_worker else 0].records[-1].step
        gone = members.workers[lost.rank] if is_worker else self._server(lost.rank)
        gone.is_over = True
        noticed_s, reason = noticed(self._job, loss, step)
        resumed_s = max(noticed_s, loss.at_s + loss.restart_s)
        self._recovery = Recovery(loss, step, noticed_s, reason, resumed_s, step, _ATTEMPT, 0.0)
        members.queue.at(resumed_s, self._resume, self._recovery)

    def _server(self, index: int) -> SimulatedServer:
        return next(server for server in self.members.servers if server.at.first == index)

    def _resume(self, recovery: Recovery) -> None:
        """All go on behind the last step that is finished everywhere, when whoever is back has its parameters."""
        members, lost = self.members, self._loss.member
        is_worker = lost.role is Role.WORKER
        replayed = min(worker.unfinished_step for worker in members.workers if not worker.is_over)
        self._recovery = replace(recovery, replayed=replayed)
        members.renew(lost.rank if is_worker else None)
        members.join(self._plan, last_step=replayed - 1)
        if is_worker and not self._job.stage.divides_parameters:
            members.bring_parameters(lost.rank, partial(self._go_on, replayed))
        else:
            self._go_on(replayed)

    def _go_on(self, step: int) -> None:
        self.members.note("run", f"without {self._loss.member}", self._loss.at_s, step)
        for worker in self.members.workers:
            worker.start(step, step + _STEPS_BEHIND, _ATTEMPT)


def _check(job: Job, member: MemberId) -> None:
    """Raise ConfigError for a member that is not there, or hosts the coordinator, without which nobody goes on."""
    count = job.world.workers if member.role is Role.WORKER else job.servers
    if member.rank >= count:
        known = f"{member.role.value} 0 to {count - 1}" if count else "no servers"
        raise ConfigError(f"--lose {member.role.value}:{member.rank}: the job has {known}; name one of its members")
    if member == MemberId(Role.SERVER if job.servers else Role.WORKER, 0):
        raise ConfigError(
            f"--lose {member.role.value}:{member.rank}: {member} hosts the coordinator, with which a run ends; "
            "name another member"
        )
    if member.role is Role.WORKER and not job.servers and rules_of(job, 1).keeps:
        raise ConfigError(
            f"--lose {member.role.value}:{member.rank}: in a ring with {job.train.precision} and stage 2 all workers "
            "gather parameters together and keep them, so that no new one can join; set exchange.zero = 3"
        )
