"""One run of every way that goes well: what all tests of the rules of an exchange look at, or compare with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from support.cluster import layout_of
from support.exchanges import Run, exchange_steps, regrouped
from support.ways import Way
from support.worker import Values, Worker
from taihu.coordination.plan import Plan
from taihu.coordination.planning import first_plan
from taihu.job import Job

__all__ = [
    "CHANGE",
    "LAYOUT",
    "STEPS",
    "change_plan",
    "family_of",
    "gradients",
    "job_of",
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


@cache
def run_of(way: Way) -> Run:
    """Some steps of three workers, and a change of the plan between two of them."""
    plans = {CHANGE: "single"} if way.is_planned else {}
    return exchange_steps(job_of(way), LAYOUT, gradients, steps=STEPS, plan=plan_of(way), plans=plans)


def family_of(way: Way) -> str:
    """Ways of a family have to end with the same bits: sums differ between servers and rings, if they are dense."""
    return f"{way.kind} {way.precision}" if way.is_dense else f"{way.method} {way.downlink} {way.threshold}"


def parametrized(ways: tuple[Way, ...] | list[Way]) -> pytest.MarkDecorator:
    """Parametrize a test by `way`; all tests of a family run in one process, so that each run is made once."""
    cases = [pytest.param(way, id=str(way), marks=pytest.mark.xdist_group(family_of(way))) for way in ways]
    return pytest.mark.parametrize("way", cases)
