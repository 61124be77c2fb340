"""Exchanges as a job wants them: the route, who updates, and the shell around both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allreduce.communicator import Communicator
from taihu.compression import Outcome
from taihu.coordination.plan import Plan
from taihu.job import Job
from taihu.optimization import OptimizerShard, in_steps
from taihu.trace import Tracer
from taihu.wire.identity import WorkerIdentity
from worker.exchange.ring.dense import Replicas, RingRoute, RingUpdates
from worker.exchange.ring.sharded import Owners
from worker.exchange.ring.sparse import SparseRoute
from worker.exchange.route import Route, RouteEvents
from worker.exchange.servers.route import ServerRoute
from worker.exchange.shell import Exchange
from worker.exchange.updates import ByEveryWorker
from worker.memory.arenas import Arenas
from worker.memory.initial_parameters import InitialParameters

__all__ = ["Beside", "between_workers", "through_servers"]


@dataclass(frozen=True)
class Beside:
    """Parts that an exchange is given beside job, plan and arenas; see `Exchange` and `InitialParameters`."""

    initial: InitialParameters | None = None
    on_compressed: Callable[[Outcome], None] = lambda _: None
    tracer: Tracer | None = None


def through_servers(  # noqa: PLR0917 - one of each
    job: Job,
    plan: Plan,
    addresses: Sequence[str],
    identity: WorkerIdentity,
    arenas: Arenas,
    beside: Beside = Beside(),
) -> Exchange:
    """A worker's exchange through the servers at `addresses`; it has not started."""

    def make_route(events: RouteEvents) -> Route:
        return ServerRoute(job, plan, addresses, identity, arenas, events, beside.initial, tracer=beside.tracer)

    return _exchange(job, plan, arenas, make_route, beside)


def between_workers(
    job: Job, plan: Plan, communicator: Communicator, arenas: Arenas, beside: Beside = Beside()
) -> Exchange:
    """A worker's exchange with the others, dense, sharded (ZeRO) or sparse (compressed); it has not started."""

    def make_route(events: RouteEvents) -> Route:
        if job.compression.method != "none":
            return SparseRoute(job, plan, communicator, arenas, events, tracer=beside.tracer)
        updates = _ring_updates(job, plan, communicator, arenas, beside.initial)
        return RingRoute(job, communicator, arenas, updates, events, tracer=beside.tracer)

    return _exchange(job, plan, arenas, make_route, beside)


def _ring_updates(
    job: Job, plan: Plan, communicator: Communicator, arenas: Arenas, initial: InitialParameters | None
) -> RingUpdates:
    if job.zero:
        return Owners(job, plan, communicator, arenas, initial)
    optimizer = OptimizerShard(in_steps(job.server_optimizer, plan.length), arenas.parameters)
    checks = job.exchange.non_finite == "error"
    return Replicas(
        communicator,
        arenas,
        ByEveryWorker(optimizer, arenas.gradients, communicator.size, checks=checks, largest_norm=job.whole_norm),
    )


def _exchange(
    job: Job, plan: Plan, arenas: Arenas, make_route: Callable[[RouteEvents], Route], beside: Beside
) -> Exchange:
    return Exchange(
        job=job,
        plan=plan,
        arenas=arenas,
        make_route=make_route,
        on_compressed=beside.on_compressed,
        tracer=beside.tracer,
    )
