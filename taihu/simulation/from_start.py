"""The first steps of a run on the virtual clock: measured, planned and planned anew as by its daemons.

Workers begin with the plan that holds before anything is measured. What they note of the steps that `Measuring` names
goes through `PlanFollower` to `Planning`, the coordinator's, and all go on by what that makes of it. A report and its
answer take a message each; the time in which the coordinator computes is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taihu.core.coordination.membership.members import Role
from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.planning import Planning
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.carriage import carrier_in
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.planner.profile import Profile
from taihu.simulation.compute import Compute
from taihu.simulation.job import Simulated, step_of
from taihu.simulation.members import Members
from taihu.simulation.placement import Placement
from taihu.worker.training.calibration import Measuring
from taihu.worker.training.plan_follower import PlanFollower
from taihu.worker.training.step_record import StepRecord


@dataclass(frozen=True)
class Report:
    """The measurements of all workers, by rank, after `step`."""

    step: int
    of_ranks: Sequence[Sequence[StepMeasurement]]


@dataclass(frozen=True)
class FirstSteps:
    """The steps of a run from its first one on.

    Attributes:
        seconds: of every step, from the end of the one before, of the first worker.
        plans: the first one, and each that was adopted.
        reports: that these were made from.
        profile: the costs that the last one was made from; None if none was.
        step: the mean of the last steps by the last plan, but for its first one.
    """

    seconds: tuple[float, ...]
    plans: tuple[Plan, ...]
    reports: tuple[Report, ...]
    profile: Profile | None
    step: Simulated


def simulate_first_steps(  # noqa: PLR0917 - as `simulate_job`
    job: Job,
    layout: Layout,
    compute: Compute,
    placement: Placement,
    profile: Profile | None,
    steps: int,
    *,
    traced: bool = False,
) -> FirstSteps:
    """Simulate the first `steps` steps of a run, at least 2; see `simulate_job`.

    Raises:
        ConfigError: the job cannot be simulated, or not on these machines.
    """
    measuring = _measuring(job)
    members = Members(job, layout, compute, placement, profile, measuring=measuring, traced=traced)
    planning = Planning(job, members.layout)
    coordinators = [_Coordinator(planning, range(at.first, at.last + 1)) for at in members.places]
    followers = [PlanFollower(measuring, each, 0.0) for each in coordinators]
    plans, first = [planning.plan], 1
    members.join(planning.plan, last_step=0)
    message_s = placement.network.alpha_seconds + placement.network.message_seconds
    while first <= steps:
        last = next((step for step in range(first, steps) if measuring.reports_after(step)), steps)
        members.train(first, last)
        if last < steps:
            _report(members, followers, range(first, last + 1))
            start_s, members.queue.now = members.queue.now, members.queue.now + 2.0 * message_s
            members.join(planning.plan, last_step=last)
            if planning.plan.version != plans[-1].version:
                plans.append(planning.plan)
                members.note("plan", f"plan {planning.plan.version}", start_s, last)
        first = last + 1
    records = members.workers[0].records
    counted = _settled(records, plans[-1].from_step, measuring)
    bounds = counted.start - 1, counted.stop - 1, len(counted)
    most = [members.traffic.most(*bounds, role) for role in (Role.WORKER, Role.SERVER)]
    return FirstSteps(
        seconds=tuple(after - before for before, after in _ends(records)),
        plans=tuple(plans),
        reports=_reports(coordinators),
        profile=planning.profile,
        step=step_of(members, counted, compute.seconds, most),
    )


class _Coordinator:
    """The coordinator of a run, as workers of some `ranks` see it, all of which report alike."""

    def __init__(self, planning: Planning, ranks: range) -> None:
        self._planning = planning
        self.ranks = ranks
        self.reported: dict[int, Sequence[StepMeasurement]] = {}

    def report_steps(self, step: int, steps: Sequence[StepMeasurement], timeout_s: float | None) -> Plan:
        """All of them report after `step`; the last rank's report makes the plan."""
        self.reported[step] = tuple(steps)
        for rank in self.ranks:
            self._planning.report(rank, step, self.reported[step])
        return self._planning.plan


def _reports(coordinators: Sequence[_Coordinator]) -> tuple[Report, ...]:
    """All reports, in their order."""
    return tuple(
        Report(step, tuple(each.reported[step] for each in coordinators for _ in each.ranks))
        for step in coordinators[0].reported
    )


def _measuring(job: Job) -> Measuring:
    return Measuring(job.exchange.calibration_steps, job.exchange.replan_every)


def _report(members: Members, followers: Sequence[PlanFollower], steps: range) -> None:
    """All workers report what they noted of these steps, in the order of their ranks."""
    for worker, follower in zip(members.workers, followers, strict=True):
        for record in worker.records[steps.start - 1 :]:
            record.path = carrier_in(worker.plan.carriage, record.step)
            follower.observe(record)
        follower.report(steps.stop - 1)


def _settled(records: Sequence[StepRecord], from_step: int, measuring: Measuring) -> range:
    """The last steps at full speed by a plan that holds from a step on: steps after reports wait less.

    Of a run that is too short for that, its last step.
    """
    steady = [
        record.step
        for record in records[from_step:]
        if not record.serial and not measuring.reports_after(record.step - 1)
    ] or [records[-1].step]
    first = steady[-1]
    while first - 1 in steady:
        first -= 1
    return range(first, steady[-1] + 1)


def _ends(records: Sequence[StepRecord]) -> list[tuple[float, float]]:
    """The instants before and after every step."""
    ends = [record.end_s for record in records]
    return list(zip([0.0, *ends], ends, strict=False))
