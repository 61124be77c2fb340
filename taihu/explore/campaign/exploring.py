"""Explores seeds, one after another: draws the case, runs its job calmly, then with faults, and judges."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.explore.campaign.judging import problems_of
from taihu.explore.campaign.work import Found, Smaller, Work
from taihu.explore.carriers import CARRIERS
from taihu.explore.cases import (
    AGENTS,
    Case,
    Machines,
    Shape,
    brought_together,
    faults_of,
    kept_rarely,
    order_of,
    shape_of,
    stepping_locally,
    supervisor_of,
    warming_up,
)
from taihu.explore.faults import fault_from
from taihu.explore.fleets import faults_of_machines, lasting, machines_of
from taihu.explore.line_switches import lines_of
from taihu.explore.outcomes import Outcome
from taihu.explore.watching import Profile
from taihu.explore.world.running import job_of, run_calm, run_case

# Jobs that are explored: each is run once without faults, too, in each process.
_SHAPES: Final = 600


class Exploration:
    """Explores seeds as `work` says."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._reached: frozenset[str] = frozenset()
        self._calm: dict[str, tuple[Outcome, Profile]] = {}

    def explore(self, seed: int, smaller: Smaller | None = None, *, agents: bool = False) -> Found:
        """Run one seed, or a smaller case in place of what it draws; with `agents` these run the workers."""
        begun_s = time.perf_counter()
        case, calm = self.case_of(seed, smaller, agents=agents)
        outcome = run_case(case, CARRIERS[self._work.carrier](), tells=self._work.tells)
        new, self._reached = outcome.reached - self._reached, self._reached | outcome.reached
        return Found(
            seed,
            problems=problems_of(case, calm, outcome),
            case=case.lines(),
            done=list(outcome.done),
            ended_well=outcome.all_ended_well,
            virtual_s=outcome.virtual_s,
            switches=outcome.switches,
            digest=outcome.digest,
            real_s=time.perf_counter() - begun_s,
            reached=sorted(new),
            drawn=_drawn(case),
            agents=agents,
            story=list(outcome.story),
        )

    def case_of(self, seed: int, smaller: Smaller | None = None, *, agents: bool = False) -> tuple[Case, Outcome]:
        """The case of a seed, and the outcome of its job without faults, and without agents."""
        shape = _valid_shape(Random(f"{seed % _SHAPES} shape"), apart=agents)  # noqa: S311
        if agents:
            shape = lasting(shape)
        if smaller is not None:
            shape = _made_smaller(shape, smaller)
        calm, profile = self._run_calm(shape)
        chance = Random(f"{seed} faults")  # noqa: S311
        supervisor, order, machines = supervisor_of(chance), order_of(chance), None
        if agents:
            supervisor, machines = AGENTS, _machines(seed, shape, calm.virtual_s, smaller)
            faults = faults_of_machines(chance, shape, machines, profile.marks, calm.virtual_s)
        else:
            faults = faults_of(chance, shape, supervisor, profile.marks, calm.virtual_s)
        if smaller is not None:
            faults = faults if smaller.faults is None else tuple(map(fault_from, smaller.faults))
            order = replace(order, holds=smaller.holds)
            supervisor = smaller.supervisor or supervisor
        between = lines_of(Random(f"{seed} lines")) if self._work.between_lines else None  # noqa: S311
        return Case(seed, shape, supervisor, order, faults, between, machines), calm

    def _run_calm(self, shape: Shape) -> tuple[Outcome, Profile]:
        """The outcome of a job without faults, which is run once."""
        known = self._calm.get(str(shape))
        if known is None:
            known = self._calm[str(shape)] = run_calm(shape, CARRIERS[self._work.carrier]())
        return known


def _drawn(case: Case) -> Smaller:
    """The case, as one to be made smaller."""
    shape, arrivals = case.shape, None if case.machines is None else case.machines.arrivals
    return Smaller(list(map(str, case.faults)), shape.steps, shape.workers, shape.servers, agents=arrivals)


def _machines(seed: int, shape: Shape, lasted_s: float, smaller: Smaller | None) -> Machines:
    """The machines of a seed, or those of a smaller case."""
    machines = machines_of(Random(f"{seed} agents"), shape, lasted_s)  # noqa: S311
    if smaller is None or smaller.agents is None:
        return machines
    return replace(machines, arrivals=tuple(smaller.agents))


def _valid_shape(chance: Random, *, apart: bool = False) -> Shape:
    """The first drawn job whose settings go together; none on one host, where its members are to be `apart`."""
    while True:
        shape = shape_of(chance)
        together = shape if apart else brought_together(shape)
        for each in (stepping_locally(together), together, shape):
            with suppress(ConfigError):
                job_of(each)
                return kept_rarely(warming_up(each))


def _made_smaller(shape: Shape, smaller: Smaller) -> Shape:
    return replace(
        shape,
        steps=shape.steps if smaller.steps is None else smaller.steps,
        every_steps=shape.every_steps if smaller.every_steps is None else smaller.every_steps,
        workers=shape.workers if smaller.workers is None else smaller.workers,
        servers=shape.servers if smaller.servers is None else smaller.servers,
    )
