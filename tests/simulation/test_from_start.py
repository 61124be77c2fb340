"""The first steps of a run on the virtual clock: measured, planned, and planned anew as by the daemons."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from support.cluster import Cluster, Member, layout_of
from support.commands import PATIENCE_S
from support.simulations import AT_ONCE, PLAIN, job_of, seconds_of

from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.planning import first_plan
from taihu.core.job import Job
from taihu.simulation.costs import costs_of, plan_of
from taihu.simulation.from_start import FirstSteps, simulate_first_steps
from taihu.simulation.placement import Placement

SIZES = (20_000, 400, 60_000, 900, 30_000, 50)
STEPS = 17
MEASURED = {"plan": "auto", "transport": "tcp", "calibration_steps": 6, "replan_every": 5, "frame_bytes": 1 << 16}


def first_steps(job: Job, each: float = 2e-3, *, distinct: bool = False) -> FirstSteps:
    layout = layout_of(*SIZES)
    placement = Placement(PLAIN, AT_ONCE, distinct=distinct)
    return simulate_first_steps(job, layout, seconds_of(layout, each), placement, None, STEPS)


@pytest.mark.parametrize(("servers", "over"), [(1, {}), (2, {"zero": 2})])
def test_a_real_run_makes_the_same_plans_of_the_same_measurements(servers: int, over: Mapping[str, object]) -> None:
    """Its workers train, and report what simulated ones have measured after the same steps."""
    job = job_of(2, servers, exchange={**MEASURED, **over})
    run = first_steps(job)
    reports = {report.step: report.of_ranks for report in run.reports}
    layout = layout_of(*SIZES)
    plans: dict[int, list[Plan]] = {0: [], 1: []}

    def work(member: Member) -> None:
        plans[member.rank].append(member.plan)
        for step in range(1, max(reports) + 1):
            member.step(step, np.ones(layout.elements, dtype=np.float32))
            if step in reports:
                member.worker.complete()
                plan = member.client.report_steps(step, reports[step][member.rank], PATIENCE_S)
                if plan.version != plans[member.rank][-1].version:
                    plans[member.rank].append(plan)
                member.exchange.adopt(plan)

    with Cluster(job) as cluster:
        cluster.run(layout, work)
    assert sorted(reports) == [6, 11, 16]
    assert plans[0] == plans[1] == list(run.plans)
    assert len(run.plans[0].groups) == len(SIZES)
    assert run.plans[1].from_step == 7


@pytest.mark.parametrize(("servers", "zero"), [(1, None), (2, 2), (0, None), (0, 2)])
def test_steps_measure_the_links_and_the_compute_that_they_run_on(servers: int, zero: int | None) -> None:
    """The calibration finds what the model of the network was given, and leads to the plan of that."""
    job = job_of(3, servers, exchange=MEASURED if zero is None else {**MEASURED, "zero": zero})
    run, layout = first_steps(job), layout_of(*SIZES)
    given = costs_of(job, layout, seconds_of(layout, 2e-3), PLAIN)
    assert run.profile is not None
    assert [layer.backward_seconds for layer in run.profile.layers] == pytest.approx([2e-3] * len(SIZES))
    assert run.profile.forward_seconds == pytest.approx(2e-3 * len(SIZES))
    assert vars(run.profile.link) == pytest.approx(vars(given.link))
    assert run.plans[0].groups == first_plan(job, layout, one_host=False).groups
    assert run.plans[-1].groups == plan_of(job, layout, given).groups
    assert len(run.seconds) == STEPS
    # Steps that exchange one group at a time are the longest.
    assert max(run.seconds) == max(run.seconds[step - 1] for step in (5, 6, 10, 11, 15, 16))
    assert run.plans[-1].predicted_seconds == pytest.approx(run.step.seconds, rel=0.1)


def test_one_worker_measures_for_all_that_are_alike() -> None:
    alike, distinct = (first_steps(job_of(3, 1, exchange=MEASURED), distinct=each) for each in (False, True))
    assert [len(report.of_ranks) for report in alike.reports] == [3, 3, 3]
    assert [plan.groups for plan in alike.plans] == [plan.groups for plan in distinct.plans]


def test_a_named_plan_stays() -> None:
    job = job_of(2, 1, exchange={**MEASURED, "plan": "bucket:100kB"})
    run = first_steps(job)
    assert {plan.groups for plan in run.plans} == {run.plans[0].groups}
