"""Exchanges as a job wants them: the route, who updates, the rules of its steps, and the shell around all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taihu.allreduce.communicator import Communicator
from taihu.core.base.errors import TaihuError
from taihu.core.chaos.points import Chaos, NoChaos
from taihu.core.compression import GroupCompressor, Outcome, make_compressor
from taihu.core.compression.scheduled_rates import ScheduledRates
from taihu.core.coordination.plans.plan import Plan
from taihu.core.history.recording import Recorder
from taihu.core.job import Job
from taihu.core.job.schedule import in_steps
from taihu.core.trace import Tracer
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.worker.exchange.base.disturbed import disturbed_events
from taihu.worker.exchange.base.holding import Hold, hold_nothing
from taihu.worker.exchange.base.recording import Recording
from taihu.worker.exchange.base.route import Route, RouteEvents
from taihu.worker.exchange.base.updates import ByEveryWorker, optimizer_of
from taihu.worker.exchange.ring.dense import Means, Replicas, RingRoute, RingUpdates
from taihu.worker.exchange.ring.sharded import Owners
from taihu.worker.exchange.ring.sparse import SparseRoute
from taihu.worker.exchange.servers.route import ServerRoute
from taihu.worker.exchange.shell import Exchange
from taihu.worker.exchange.step_rules import rules_of
from taihu.worker.memory.arenas import Arenas
from taihu.worker.memory.initial_parameters import InitialParameters


@dataclass(frozen=True)
class Beside:
    """Parts that an exchange is given beside job, plan and arenas; see `Exchange` and `InitialParameters`."""

    initial: InitialParameters | None = None
    on_compressed: Callable[[Outcome], None] | None = None
    tracer: Tracer | None = None
    on_failure: Callable[[TaihuError], None] = lambda _: None
    recorder: Recorder = field(default_factory=Recorder.off)
    chaos: Chaos = field(default_factory=NoChaos)
    hold: Hold = hold_nothing


def through_servers(  # noqa: PLR0917 - one of each
    job: Job,
    plan: Plan,
    addresses: Sequence[str],
    identity: WorkerIdentity,
    arenas: Arenas,
    beside: Beside = Beside(),
) -> Exchange:
    """A worker's exchange through the servers at `addresses`; it has not started."""
    recording = Recording(beside.recorder, arenas)

    def make_route(events: RouteEvents) -> Route:
        return ServerRoute(
            job,
            plan,
            addresses,
            identity,
            arenas,
            events,
            recording,
            beside.initial,
            tracer=beside.tracer,
            faults=beside.chaos.frames,
        )

    return _exchange(job, plan, arenas, make_route, beside, recording)


def between_workers(
    job: Job, plan: Plan, communicator: Communicator, arenas: Arenas, beside: Beside = Beside()
) -> Exchange:
    """A worker's exchange with the others, dense, sharded (ZeRO) or sparse (compressed); it has not started."""
    recording = Recording(beside.recorder, arenas)

    def make_route(events: RouteEvents) -> Route:
        if job.compression.method.selects:
            return SparseRoute(job, plan, communicator, arenas, events, recording, tracer=beside.tracer)
        updates = _ring_updates(job, plan, communicator, arenas, recording, beside.initial)
        chaos = None if isinstance(beside.chaos, NoChaos) else beside.chaos
        return RingRoute(job, plan, communicator, arenas, updates, events, tracer=beside.tracer, chaos=chaos)

    return _exchange(job, plan, arenas, make_route, beside, recording)


def _ring_updates(  # noqa: PLR0917 - one of each
    job: Job,
    plan: Plan,
    communicator: Communicator,
    arenas: Arenas,
    recording: Recording,
    initial: InitialParameters | None,
) -> RingUpdates:
    if job.stage.divides_optimizer:
        return Owners(job, plan, communicator, arenas, recording=recording, initial=initial)
    checks = job.refuses_non_finite
    if job.exchange.returns == "gradients":
        return Means(communicator, arenas, checks=checks)
    optimizer = optimizer_of(job, plan, arenas)
    return Replicas(
        communicator,
        arenas,
        ByEveryWorker(
            optimizer,
            arenas.gradients,
            communicator.size,
            checks=checks,
            recording=recording,
            largest_norm=job.whole_norm,
        ),
    )


def _exchange(  # noqa: PLR0917 - one of each
    job: Job,
    plan: Plan,
    arenas: Arenas,
    make_route: Callable[[RouteEvents], Route],
    beside: Beside,
    recording: Recording,
) -> Exchange:
    chaos = beside.chaos

    def disturbed(events: RouteEvents) -> Route:
        return make_route(disturbed_events(events, chaos))

    return Exchange(
        job=job,
        plan=plan,
        arenas=arenas,
        rules=rules_of(job, len(arenas.parameters)),
        make_route=make_route if isinstance(chaos, NoChaos) else disturbed,
        compressor=compressor_of(job, plan, arenas) if job.compression.method.selects else None,
        scheduled=scheduled_rates(job, plan),
        on_compressed=beside.on_compressed,
        on_failure=beside.on_failure,
        recording=recording,
        tracer=beside.tracer,
        chaos=None if isinstance(chaos, NoChaos) else chaos,
        holding=beside.hold(plan),
    )


def scheduled_rates(job: Job, plan: Plan) -> ScheduledRates | None:
    """The learning rates of a job's own schedule; None where what is held back does not follow them."""
    if not (job.lowers_held_back and job.exchange.returns == "parameters" and plan.updates is None):
        return None
    return ScheduledRates(in_steps(job.applied_optimizer, plan.length), len(plan.layout.layers))


def compressor_of(job: Job, plan: Plan, arenas: Arenas) -> GroupCompressor:
    """The compression of a worker's gradients."""
    compressor = make_compressor(
        job.compression, job.applied_optimizer, workers=plan.world.workers, momentum_here=job.momentum_on_workers
    )
    return GroupCompressor(
        compressor,
        plan.layout,
        plan.groups,
        gradients=arenas.gradients,
        parameters=arenas.parameters,
        forgets_non_finite=not job.refuses_non_finite,
    )
