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
    Case,
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

    def explore(self, seed: int, smaller: Smaller | None = None) -> Found:
        """Run one seed, or a smaller case in place of what it draws."""
        begun_s = time.perf_counter()
        case, calm = self.case_of(seed, smaller)
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
            drawn=Smaller(list(map(str, case.faults)), case.shape.steps, case.shape.workers, case.shape.servers),
            story=list(outcome.story),
        )

    def case_of(self, seed: int, smaller: Smaller | None = None) -> tuple[Case, Outcome]:
        """The case of a seed, and the outcome of its job without faults."""
        shape = _valid_shape(Random(f"{seed % _SHAPES} shape"))  # noqa: S311
        if smaller is not None:
            shape = _made_smaller(shape, smaller)
        calm, profile = self._run_calm(shape)
        chance = Random(f"{seed} faults")  # noqa: S311
        supervisor, order = supervisor_of(chance), order_of(chance)
        faults = faults_of(chance, shape, supervisor, profile.marks, calm.virtual_s)
        if smaller is not None:
            faults = faults if smaller.faults is None else tuple(map(fault_from, smaller.faults))
            order = replace(order, holds=smaller.holds)
            supervisor = smaller.supervisor or supervisor
        between = lines_of(Random(f"{seed} lines")) if self._work.between_lines else None  # noqa: S311
        return Case(seed, shape, supervisor, order, faults, between), calm

    def _run_calm(self, shape: Shape) -> tuple[Outcome, Profile]:
        """The outcome of a job without faults, which is run once."""
        known = self._calm.get(str(shape))
        if known is None:
            known = self._calm[str(shape)] = run_calm(shape, CARRIERS[self._work.carrier]())
        return known


def _valid_shape(chance: Random) -> Shape:
    """The first drawn job whose settings go together."""
    while True:
        shape = shape_of(chance)
        together = brought_together(shape)
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
