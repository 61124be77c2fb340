"""One worker of a test: the exchange that its job asks for, its arenas, and whole steps with both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allreduce.communicator import Communicator
from taihu.coordination.plan import Plan
from taihu.job import Job
from taihu.layout import Layout
from taihu.planner.groups import group_bounds
from taihu.wire.identity import WorkerIdentity
from worker.exchange.interface import GradientExchange
from worker.exchange.ring.dense import RingExchange
from worker.exchange.ring.sharded import ShardedRingExchange
from worker.exchange.ring.sparse import SparseRingExchange
from worker.exchange.servers.route import ServerExchange
from worker.memory.arenas import Arenas

__all__ = ["Values", "Worker", "between_workers", "initial_parameters", "through_servers"]

Values = NDArray[np.float32]


def initial_parameters(layout: Layout) -> Values:
    """The parameters that worker 0 brings."""
    return np.random.default_rng(0).standard_normal(layout.elements, dtype=np.float32)


def through_servers(
    job: Job, plan: Plan, addresses: Sequence[str], identity: WorkerIdentity, arenas: Arenas
) -> ServerExchange:
    """A worker's exchange through the servers at `addresses`; it has not started."""
    return ServerExchange(job=job, plan=plan, addresses=addresses, identity=identity, arenas=arenas)


def between_workers(job: Job, plan: Plan, communicator: Communicator, arenas: Arenas) -> RingExchange:
    """A worker's exchange with the others, dense, sharded (ZeRO) or sparse (compressed); it has not started."""
    if job.compression.method != "none":
        return SparseRingExchange(job=job, plan=plan, communicator=communicator, arenas=arenas)
    kind = ShardedRingExchange if job.zero else RingExchange
    return kind(job=job, plan=plan, communicator=communicator, arenas=arenas)


@dataclass(frozen=True)
class Worker:
    """`change_plan(step, strategy)` goes on by other groups after `step`; all workers call it after the same one."""

    rank: int
    exchange: GradientExchange
    arenas: Arenas
    change_plan: Callable[[int, str], None]

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Where each group of the present plan begins and ends."""
        return tuple(group_bounds(self.exchange.plan.layout, self.exchange.groups))

    def read(self) -> Values:
        """A forward that reads all parameters; returns a copy."""
        values = np.empty_like(self.arenas.parameters)
        for group, (start, stop) in reversed(list(enumerate(self.bounds))):
            self.exchange.wait(group)
            values[start:stop] = self.arenas.parameters[start:stop]
        return values

    def backward(self, step: int, gradients: Values) -> None:
        """Begin `step` and push all groups of `gradients`, times the loss scale."""
        self.exchange.begin(step)
        for group in range(len(self.bounds)):
            self.push(group, gradients)

    def push(self, group: int, gradients: Values) -> None:
        """Write the group's part of `gradients`, times the loss scale, and push it."""
        start, stop = self.bounds[group]
        self.exchange.prepare(group)
        self.arenas.gradients[start:stop] = gradients[start:stop] * np.float32(self.exchange.loss_scale)
        self.exchange.push(group)

    def complete(self) -> None:
        """Wait until all groups have been summed and updated by all."""
        for group in range(len(self.bounds)):
            self.exchange.complete(group)

    def step(self, step: int, gradients: Values) -> Values:
        """A backward, and a forward behind it; returns a copy of the parameters that it read."""
        self.backward(step, gradients)
        return self.read()
