"""One run of every way that goes well: what all tests of the rules of an exchange look at, or compare with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest

from support.cluster import layout_of
from support.exchanges import Run, exchange_steps, regrouped
from support.ways import Way
from support.worker import Values, Worker
from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.planning import first_plan
from taihu.core.job import Job

__all__ = [
    "CHANGE",
    "LAYOUT",
    "STEPS",
    "change_plan",
    "family_of",
    "gradients",
    "job_of",
    "looked_at",
    "parametrized",
    "plan_of",
    "run_of",
    "strategies_of",
]

LAYOUT = layout_of(1, 700, 3, 4096, 2500, 2, 3000)
STEPS = 5
CHANGE = 2
"""After this step the plan changes, where it can: from a group for every layer to as few as possible."""


def gradients(rank: int, step: int) -> Values:
    """The gradients of a worker in a step."""
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def job_of(way: Way) -> Job:
    """The job of three workers."""
    return way.job(1 if way.downlink == "doublesqueeze" else 2)


def plan_of(way: Way) -> Plan | None:
    """The first plan of a ring: with every layer by itself, where it can."""
    job = job_of(way)
    if way.kind != "ring":
        return None
    plan = first_plan(job, LAYOUT, one_host=False)
    routes = (way.route,) * len(plan.groups) if way.route else ()
    plan = replace(plan, routes=routes)
    return regrouped(job, plan, "per-layer") if way.is_planned else plan


def strategies_of(way: Way) -> list[str]:
    """The groups of layers in each step."""
    first = "single" if way.method == "topk" else "per-layer"
    return [first if step <= CHANGE or not way.is_planned else "single" for step in range(1, STEPS + 1)]


def change_plan(way: Way, worker: Worker, step: int) -> None:
    """Go on by other groups, where the run does behind `step`."""
    if step == CHANGE and way.is_planned:
        worker.complete()
        worker.change_plan(step, "single")


@dataclass
class Before:
    """The look that workers take before the first step of a run.

    Attributes:
        recalled: by rank, of each group that was asked for again whether its parameters were what they had been.
        flags: by rank, two flags after all have agreed on them; of worker 0 the first was set, of others the second.
    """

    recalled: dict[int, list[bool]] = field(default_factory=dict)
    flags: dict[int, list[float]] = field(default_factory=dict)

    def look(self, worker: Worker) -> None:
        """Read forward several times, and agree."""
        worker.read()
        worker.read()
        known = worker.read()
        same = self.recalled[worker.rank] = []
        for group in (0, 3, 1, 4, 2, 3):
            if group < len(worker.bounds):
                start, stop = worker.bounds[group]
                worker.exchange.recall(group, ahead=group % 2 == 0)
                same.append(worker.arenas.parameters[start:stop].tobytes() == known[start:stop].tobytes())
        flags = np.array([1.0, 0.0]) if worker.rank == 0 else np.array([0.0, 1.0])
        worker.exchange.agree(flags)
        self.flags[worker.rank] = list(map(float, flags))


@cache
def looked_at(way: Way) -> tuple[Run, Before]:
    """Some steps of three workers, and a change of the plan between two of them; and what dense ways see before."""
    plans, before = {CHANGE: "single"} if way.is_planned else {}, Before()
    look = before.look if way.is_dense else lambda _: None
    run = exchange_steps(job_of(way), LAYOUT, gradients, steps=STEPS, plan=plan_of(way), plans=plans, before=look)
    return run, before


def run_of(way: Way) -> Run:
    """The steps alone."""
    return looked_at(way)[0]


def family_of(way: Way) -> str:
    """Ways of a family have to end with the same bits: sums differ between servers and rings, if they are dense."""
    return f"{way.kind} {way.precision}" if way.is_dense else f"{way.method} {way.downlink} {way.threshold}"


def parametrized(ways: tuple[Way, ...] | list[Way]) -> pytest.MarkDecorator:
    """Parametrize a test by `way`; all tests of a family run in one process, so that each run is made once."""
    cases = [pytest.param(way, id=str(way), marks=pytest.mark.xdist_group(family_of(way))) for way in ways]
    return pytest.mark.parametrize("way", cases)
