"""One worker of a test: the exchange that its job asks for, its arenas, and whole steps with both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taihu.core.checkpoint.keepers import resumed_from
from taihu.core.checkpoint.part import PARAMETERS
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.groups import group_bounds
from taihu.worker.exchange.shell import Exchange
from taihu.worker.memory.arenas import Arenas

__all__ = ["Values", "Worker", "first_parameters", "initial_parameters", "train_slowly"]

Values = NDArray[np.float32]


def initial_parameters(layout: Layout) -> Values:
    """The parameters that worker 0 brings."""
    return np.random.default_rng(0).standard_normal(layout.elements, dtype=np.float32)


def first_parameters(job: Job, layout: Layout) -> Values:
    """The parameters that worker 0 brings to a job: `initial_parameters`, or those that it goes on from."""
    checkpoint = resumed_from(job)
    if checkpoint is None:
        return initial_parameters(layout)
    values = np.empty(layout.elements, dtype=np.float32)
    checkpoint.read_shared(PARAMETERS, layout, np.array([[0, layout.elements]]), values)
    return values


@dataclass(frozen=True)
class Worker:
    """`change_plan(step, strategy)` goes on by other groups after `step`; all workers call it after the same one."""

    rank: int
    exchange: Exchange
    arenas: Arenas
    change_plan: Callable[[int, str], None]

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Bounds of each group of the present plan."""
        return tuple(group_bounds(self.exchange.plan.layout, self.exchange.plan.groups))

    def read(self) -> Values:
        """A forward that reads all parameters; returns a copy."""
        values = np.empty_like(self.arenas.parameters)
        for group, (start, stop) in reversed(list(enumerate(self.bounds))):
            self.exchange.wait(group)
            values[start:stop] = self.arenas.parameters[start:stop]
        return values

    def backward(
        self,
        step: int,
        gradients: Values,
        *,
        order: Callable[[int], Sequence[int]] = range,
        known: Values | None = None,
        attempt: int = 0,
    ) -> None:
        """Begin `step` and push all groups of `gradients`, times the loss scale.

        `known` are the parameters that forward read, which backward must see.
        """
        self.exchange.begin(step, attempt)
        for group in order(len(self.bounds)):
            self.push(group, gradients, known)

    def push(self, group: int, gradients: Values, known: Values | None = None) -> None:
        """Write the group's part of `gradients`, times the loss scale, and push it; see `backward`."""
        start, stop = self.bounds[group]
        self.exchange.prepare(group)
        if known is not None:
            assert self.arenas.parameters[start:stop].tobytes() == known[start:stop].tobytes()
        self.arenas.gradients[start:stop] = gradients[start:stop] * np.float32(self.exchange.loss_scale)
        self.exchange.push(group)

    def complete(self) -> None:
        """Wait until all groups have been summed and updated by all."""
        for group in range(len(self.bounds)):
            self.exchange.complete(group)

    def step(self, step: int, gradients: Values, *, attempt: int = 0) -> Values:
        """A backward, and a forward behind it; returns a copy of the parameters that it read."""
        self.backward(step, gradients, attempt=attempt)
        return self.read()


def train_slowly(worker: Worker, steps: int, run_again: Sequence[tuple[int, int]] = ()) -> None:
    """Steps in which every group is waited for before the next one is pushed, in the order of `StepDriver`.

    Backward reads the groups of the segments `run_again` (first to last) in forward order, before their own turn.
    """
    exchange, groups, segments = worker.exchange, len(worker.bounds), dict(run_again)

    def quiet() -> None:
        parameters = exchange._protocol.parameters
        exchange.carry_out(wait for wait in [(lambda: all(map(parameters.is_quiet, range(groups))), 0)])

    for step in range(1, steps + 1):
        for group in reversed(range(groups)):
            exchange.wait(group)
            quiet()
        exchange.begin(step)
        for group in range(groups):
            for again in reversed(range(group, segments.get(group, -1) + 1)):
                exchange.recall(again, ahead=False)
                quiet()
            exchange.prepare(group)
            quiet()
            exchange.push(group)
            exchange.complete(group)
