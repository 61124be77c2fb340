"""A job's steps on the virtual clock: who takes part, where, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from taihu.core.coordination.membership.members import Role
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.profile import Profile
from taihu.core.trace.parts import TracePart
from taihu.simulation.compute import Compute
from taihu.simulation.costs import plan_of
from taihu.simulation.members import Members
from taihu.simulation.placement import Placement
from taihu.worker.exchange.step_rules import rules_of
from taihu.worker.training.step_record import StepRecord

_LEAST_STEPS: Final = 2
_UNEVEN_STEPS: Final = 8
_ROUNDED: Final = 9


@dataclass(frozen=True)
class Simulated:
    """One step of a job in the long run: the mean of all but the first, of the worker that computes the longest.

    Attributes:
        seconds: from one step's end to the next one's.
        usual_seconds: that a worker computes which neither straggles nor jitters.
        compute_seconds: that this worker computed.
        compress_seconds: spent on selecting, beside compute.
        exchange_seconds: from the first push to the last update, of the last step.
        wait_seconds: in which the worker did not compute.
        worker_bytes, server_bytes: that one of them sent and received between hosts; of the one with the most.
        plan: by which the steps ran.
        events: that were simulated in all.
        parts: what all processes recorded, where steps are traced.
    """

    seconds: float
    usual_seconds: float
    compute_seconds: float
    compress_seconds: float
    exchange_seconds: float
    wait_seconds: float
    worker_bytes: tuple[int, int]
    server_bytes: tuple[int, int] | None
    plan: Plan
    events: int
    parts: tuple[TracePart, ...] = ()

    @property
    def efficiency(self) -> float:
        """The speed of each worker beside that of one alone."""
        return self.usual_seconds / self.seconds if self.seconds else 1.0

    def to_json(self) -> dict[str, Any]:
        """The step as results show it."""
        processes = {"worker": self.worker_bytes, "server": self.server_bytes}
        return {
            "seconds_per_step": self.seconds,
            "seconds_compute": self.compute_seconds,
            "seconds_compress": self.compress_seconds,
            "seconds_exchange": self.exchange_seconds,
            "seconds_wait": self.wait_seconds,
            "efficiency": self.efficiency,
            "groups": len(self.plan.groups),
            "bytes_per_process": {
                name: {"sent": sent_received[0], "received": sent_received[1]}
                for name, sent_received in processes.items()
                if sent_received is not None
            },
            "events": self.events,
        }


def simulate_job(
    job: Job,
    layout: Layout,
    compute: Compute,
    placement: Placement,
    profile: Profile | None = None,
    *,
    steps: int | None = None,
    traced: bool = False,
) -> Simulated:
    """Simulate `steps` steps of `job` by the plan that its coordinator would make.

    Args:
        job: its world says how many there are.
        layout: of its model.
        compute: of a worker, for every layer of `layout`.
        placement: what it runs on.
        profile: where the costs of selecting are taken from.
        steps: at least 2, for the first one waits for nothing of a step before; by default so many, or 8 where steps
            differ.
        traced: whether all processes record what they do.

    Raises:
        ConfigError: the job cannot be simulated, or not on these machines.
    """
    enough = steps or (_UNEVEN_STEPS if placement.is_random else _LEAST_STEPS)
    members = Members(job, layout, compute, placement, profile, traced=traced)
    members.join(plan_of(job, members.layout, members.costs), last_step=0)
    traffic, steps = members.traffic, max(_LEAST_STEPS, enough)
    members.train(1, steps)
    traffic.note()
    # Where parameters are fetched, the first step fetches more than others and the last one less.
    fetches = rules_of(job, members.layout.elements).fetches
    bounds = (1, steps) if fetches else (0, steps + 1)
    most = [traffic.most(*bounds, steps - fetches, role) for role in (Role.WORKER, Role.SERVER)]
    return step_of(members, range(2, steps + 1), compute.seconds, most)


def step_of(
    members: Members, steps: range, usual_seconds: float, most_bytes: Sequence[tuple[int, int] | None]
) -> Simulated:
    """The mean of some steps, behind others, of the worker that computes the longest in them.

    Args:
        members: that have trained them by their present plan.
        steps: their numbers.
        usual_seconds: that a worker computes.
        most_bytes: of a worker and of a server.
    """
    before, *those = max(
        (worker.records[steps.start - 2 : steps.stop - 1] for worker in members.workers), key=_computed_and_took
    )
    last = those[-1].sample()
    seconds = (those[-1].end_s - before.end_s) / len(those)
    computed = sum(record.sample().compute_seconds for record in those) / len(those)
    of_worker, of_server = most_bytes
    assert of_worker is not None  # noqa: S101 - there are workers
    return Simulated(
        seconds=seconds,
        usual_seconds=usual_seconds,
        compute_seconds=computed,
        compress_seconds=last.compress_seconds,
        exchange_seconds=last.exchange_seconds,
        wait_seconds=seconds - computed,
        worker_bytes=of_worker,
        server_bytes=of_server,
        plan=members.workers[0].plan,
        events=members.queue.handled,
        parts=members.parts,
    )


def _computed_and_took(records: Sequence[StepRecord]) -> tuple[float, float]:
    """The seconds that a worker computed, and that its steps took, in all but the first."""
    computed = sum(record.end_s - record.start_s - record.waited_s for record in records[1:])
    # What was waited is rounded otherwise for workers that compute as long.
    return round(computed, _ROUNDED), records[-1].end_s - records[0].end_s
