"""The run's plan: when it is made, by whose reports, and when it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cluster import Cluster, Member, layout_of, make_job

from taihu.coordination.planning import Planning, first_plan, planned_compression
from taihu.errors import FrameError, StaleError
from taihu.job import Job
from taihu.planner.decide import decide
from taihu.planner.groups import Group
from taihu.planner.measurement import GroupMeasurement, StepMeasurement

LAYOUT = layout_of(1000, 2000, 3000)


def job(plan: str = "auto", method: str = "dlgs") -> Job:
    return make_job(1, 2, exchange={"plan": plan}, compression={"method": method, "density": 0.1})


def step(number: int, *, serial: bool, alpha: float, groups: int = 3) -> StepMeasurement:
    """Backward of 1 ms a layer; an exchange takes `alpha` and 1 microsecond a byte either way."""
    sizes = [layer.elements for layer in LAYOUT.layers[:groups]]
    exchanged = tuple(
        GroupMeasurement(size, 1e-6 * size, False, size, 2 * size, alpha + 1e-6 * size, 2e-6 * size) for size in sizes
    )
    return StepMeasurement(number, serial, 0.01, (0.001, 0.001, 0.001), exchanged)


def report(alpha: float = 0.0001) -> list[StepMeasurement]:
    return [step(2, serial=False, alpha=alpha), step(3, serial=True, alpha=alpha)]


@pytest.mark.parametrize(
    ("plan", "method", "groups"),
    [
        ("auto", "dlgs", 3),
        ("exact", "none", 3),
        ("greedy", "lags", 3),
        ("auto", "topk", 1),
        ("single", "dlgs", 1),
        ("bucket:10kB", "dlgs", 2),
    ],
)
def test_the_first_plan_measures_every_layer_unless_a_plan_is_named(plan: str, method: str, groups: int) -> None:
    first = first_plan(job(plan, method), LAYOUT, one_host=False)
    assert (first.version, first.from_step, len(first.groups), first.predicted_seconds) == (1, 1, groups, 0.0)


@pytest.mark.parametrize(
    ("exchange", "method", "one_host", "frame_bytes"),
    [
        ({}, "none", False, 512 << 10),
        ({}, "none", True, 4 << 20),
        ({"transport": "tcp"}, "none", True, 512 << 10),
        ({"transport": "same-host"}, "none", True, 4 << 20),
        ({"frame_bytes": 8192}, "none", True, 8192),
        ({"frame_bytes": 8192}, "none", False, 8192),
        ({}, "dlgs", True, 4_000_000),
        ({"frame_bytes": 8192}, "dlgs", False, 8192),
        ({"frame_bytes": 4 << 20}, "dlgs", False, 4_000_000),
    ],
)
def test_frames_are_large_where_memory_is_shared(
    exchange: dict[str, object], method: str, one_host: bool, frame_bytes: int
) -> None:
    job = Job.model_validate({"exchange": exchange, "compression": {"method": method}})
    assert first_plan(job, LAYOUT, one_host=one_host).frame_elements * 4 == frame_bytes


def test_the_last_report_makes_the_plan_that_the_planner_finds_best() -> None:
    planning = Planning(job(), LAYOUT)
    planning.report(1, 8, report(alpha=0.5))
    assert not planning.decided_after(8)
    assert planning.plan.version == 1
    planning.report(0, 8, report(alpha=0.5))
    assert planning.decided_after(8)
    assert planning.profile is not None
    best = decide(planning.profile, planned_compression(job(), planning.plan.frame_elements), "auto")
    # A start-up of half a second for each message leaves nothing but one message.
    assert best.groups == (Group(0, 2),)
    plan = planning.plan
    assert (plan.version, plan.from_step, plan.groups) == (2, 9, best.groups)
    assert plan.predicted_seconds == pytest.approx(best.seconds)


def test_a_plan_that_is_named_stays_and_gets_a_prediction() -> None:
    planning = Planning(job("per-layer"), LAYOUT)
    for rank in (0, 1):
        planning.report(rank, 8, report(alpha=0.5))
    assert (planning.plan.version, planning.plan.from_step, len(planning.plan.groups)) == (1, 1, 3)
    assert planning.plan.predicted_seconds > 1.5


def test_the_plan_changes_again_only_where_that_gains_enough() -> None:
    planning = Planning(job(), LAYOUT)
    for rank in (0, 1):
        planning.report(rank, 8, report(alpha=1e-6))
    first = planning.plan
    again = [replace(each, groups=each.groups[: len(first.groups)]) for each in report(alpha=1.1e-6)]
    for rank in (0, 1):
        planning.report(rank, 20, again)
    assert (planning.plan.version, planning.plan.groups) == (first.version, first.groups)
    assert planning.plan.from_step == first.from_step


def test_reports_that_do_not_belong_together_are_refused() -> None:
    planning = Planning(job(), LAYOUT)
    planning.report(0, 8, report())
    with pytest.raises(StaleError, match=r"worker 1 reports after step 9: expected one step with the others, after"):
        planning.report(1, 9, report())
    with pytest.raises(FrameError, match=r"worker 1 reports 3 layers and 1 groups of step 2: expected 3 and 3"):
        planning.report(1, 8, [step(2, serial=True, alpha=0.1, groups=1)])
    planning.report(1, 8, report())
    with pytest.raises(StaleError, match=r"worker 0 reports after step 8"):
        planning.report(0, 8, report())


def test_workers_and_servers_change_the_plan_at_the_same_step() -> None:
    """The replicas of a run that changes its plan are those of one that does not (dense: groups change no bit)."""
    seen: dict[str, list[bytes]] = {"auto": [], "per-layer": []}
    for strategy, digests in seen.items():

        def work(member: Member, strategy: str = strategy, digests: list[bytes] = digests) -> None:
            for number in range(1, 13):
                gradients = member.arenas.parameters * 0.1 + member.rank
                parameters = member.step(number, gradients)
                if number in (4, 8):
                    here = len(member.exchange.groups)
                    measured = [replace(each, groups=each.groups[:here]) for each in report(alpha=0.5)]
                    member.exchange.adopt(member.client.report_steps(number, measured, timeout_s=20))
            digests.append(parameters.tobytes())
            assert member.exchange.plan.version == (2 if strategy == "auto" else 1)

        with Cluster(make_job(2, 2, exchange={"plan": strategy})) as cluster:
            cluster.run(LAYOUT, work)
    assert len(seen["auto"]) == len(seen["per-layer"]) == 2
    assert len({*seen["auto"], *seen["per-layer"]}) == 1


@pytest.mark.parametrize(
    ("exchange", "alpha", "frame_bytes"),
    [
        ({}, 1e-6, 64 << 10),
        ({}, 10.0, 512 << 10),
        ({"plan": "per-layer"}, 1e-6, 512 << 10),
        ({"frame_bytes": 8192}, 1e-6, 8192),
        ({"kind": "ring"}, 1e-6, 512 << 10),
    ],
)
def test_the_first_report_tells_what_frames_the_links_want(
    exchange: dict[str, object], alpha: float, frame_bytes: int
) -> None:
    planning = Planning(make_job(1, 2, exchange=exchange), LAYOUT)
    for at, start_up in ((8, alpha), (16, 10 * alpha)):
        groups = len(planning.plan.groups)
        steps = [replace(each, groups=each.groups[:groups]) for each in report(alpha=start_up)]
        for rank in (0, 1):
            planning.report(rank, at, steps)
        assert planning.plan.frame_elements * 4 == frame_bytes
