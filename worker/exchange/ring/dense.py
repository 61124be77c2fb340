"""The route around a ring: groups are summed by an allreduce, and updated by whom the route is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import Operation, OperationKey
from taihu.allreduce.ring.schedule import Chunks, Ring, cut_chunks
from taihu.core.base.errors import RunError
from taihu.core.chaos.points import Chaos
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import State
from taihu.core.compression import GroupCompressor, Selection
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.planner.partition import FrameSpec
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.frames.headers import At, ValueType
from taihu.worker.exchange.base.disturbed import disturb
from taihu.worker.exchange.base.route import Held, Route, RouteEvents, Updated
from taihu.worker.exchange.base.updates import ByEveryWorker, check_finite
from taihu.worker.exchange.ring.peer_path import PeerPath
from taihu.worker.memory.arenas import Arenas


class RingUpdates(Protocol):
    """The updates of a ring: who makes them, and so what goes around and where it ends."""

    shares_sums: int
    sums_at_once: bool
    """Whether nothing is done with a part of a group before its sum goes on."""

    def bring(self) -> None:
        """Bring worker 0's parameters to where they belong on all."""

    def adopt(self, plan: Plan, chunks: list[Chunks]) -> None:
        """Go on by another plan, whose groups are cut into `chunks`."""

    def begin(self, at: At) -> None:
        """Begin a step: what follows belongs to `at`."""

    def operation(self, key: OperationKey, chunks: Chunks, loss_scale: float) -> Operation:
        """The allreduce of a group, or what there is in place of one, that also updates."""

    def apply(self, at: At, loss_scale: float, events: RouteEvents) -> None:
        """Update by the sums of all groups, as `Route.apply`; `events.applied` follows."""

    def fetch(self, group: int, step: int, events: RouteEvents) -> None:
        """Bring a group's parameters as they are after `step`, which do not stay, to all; they all do so as often."""

    def held(self) -> Held:
        """The elements that this worker updates, as `Route.held`."""

    def hold(self, held: HeldSteps, make_state: Callable[[], State]) -> bool:
        """Have `held` take what this worker alone updates; as `Route.hold`."""

    def agree(self, flags: NDArray[np.float64]) -> None:
        """Replace `flags`, shape (n,), by those of worker 0; as `Route.agree`."""


def chunks_of(plan: Plan, workers: int, value_type: ValueType) -> list[Chunks]:
    """The chunks that each group of a plan is cut into."""
    return [cut_chunks(plan.layout, group, workers, value_type.dtype.itemsize) for group in plan.groups]


class RingRoute(Route):
    """A route; the communicator is not closed here.

    A part of a group is updated as soon as its sum is complete, or all of it is where that is summed at once, while
    others are under way. `chaos` is asked for faults where parts are summed and updated.
    """

    def __init__(  # noqa: PLR0917 - one of each
        self,
        job: Job,
        plan: Plan,
        communicator: Communicator,
        arenas: Arenas,
        updates: RingUpdates,
        events: RouteEvents,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
        chaos: Chaos | None = None,
    ) -> None:
        self._chaos = chaos
        self._communicator = communicator
        self.path: PeerPath = PeerPath(communicator, job.exchange.transport, plan.carriage, events)
        self._arenas = arenas
        self._updates = updates
        self._events = events
        self._clock = clock or SystemClock()
        self._tracer = tracer or Tracer.off()
        self._chunks = chunks_of(plan, communicator.size, arenas.value_type)
        self._at = At(0, 0)
        self.shares_sums = updates.shares_sums

    @override
    def start(self) -> None:
        """Start, and find out whether all workers share memory."""
        self._updates.bring()
        by_kernel = self._chaos is None if self._updates.sums_at_once else None
        self.path.open(self._arenas.shared, self._arenas.value_type, by_kernel=by_kernel)

    @override
    def adopt(self, plan: Plan) -> None:
        self.path.adopt(plan)
        self._chunks = chunks_of(plan, self._communicator.size, self._arenas.value_type)
        self._updates.adopt(plan, self._chunks)

    @override
    def parts(self, group: int) -> int:
        """One: a group ends as a whole."""
        return 1

    @override
    def begin(self, at: At) -> None:
        self._at = at
        if self.path.is_trial or at.attempt > self.path.attempt:
            self.path.begin(at)
        self._updates.begin(at)

    def tell(self, rates: Sequence[float]) -> None:
        """Refuse: workers of a ring update by the job's own optimizer, or not at all."""
        raise RunError("learning rates of a script are told to servers")

    @override
    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        key = OperationKey(self._at, group)
        operation = self._updates.operation(key, self._chunks[group], loss_scale)
        operation.on_finished = partial(self._finished, self._at, operation, self._clock.now())
        if self._chaos is not None:
            disturb(operation, self._chaos)
        self._communicator.start(operation)
        return 0

    @override
    def apply(self, at: At, loss_scale: float) -> None:
        self._updates.apply(at, loss_scale, self._events)

    def send_selected(self, group: int, selection: Selection, compressor: GroupCompressor) -> int:
        """Refuse: what is selected goes from each to each, see `ring.sparse`."""
        raise RunError("compressed gradients do not go around a ring")

    @override
    def fetch(self, group: int, step: int) -> None:
        self._updates.fetch(group, step, self._events)

    @override
    def held(self) -> Held:
        return self._updates.held()

    @override
    def hold(self, held: HeldSteps, make_state: Callable[[], State]) -> bool:
        return self._updates.hold(held, make_state)

    def keep(self, step: int, *, until_durable: bool) -> None:
        """Workers update for themselves."""

    @override
    def agree(self, flags: NDArray[np.float64]) -> None:
        self._updates.agree(flags)

    @override
    def agree_on_skipping(self, *, overflowed: bool) -> bool:
        anybody = np.array([overflowed], dtype=np.float32)
        self._communicator.allreduce(anybody)
        return bool(anybody[0])

    def _finished(self, at: At, operation: Operation, start_s: float) -> None:
        # All of it counts as the way up: bytes go both ways at once.
        group = operation.key.group
        sent, received = operation.sent_bytes, operation.received_bytes
        if self._tracer.enabled:
            self._tracer.add("ring", "allreduce", start_s, self._clock.now(), step=at.step, group=group)
        self._events.updated(Updated(group, at, sent, received))


class Undivided(RingUpdates):
    """The part of updates that is alike wherever all workers have everything; it has no fields."""

    shares_sums = 1
    sums_at_once = True

    def adopt(self, plan: Plan, chunks: list[Chunks]) -> None:
        """Do nothing: everybody has everything."""

    def begin(self, at: At) -> None:
        """Do nothing: everybody has everything."""

    def fetch(self, group: int, step: int, events: RouteEvents) -> None:
        """Refuse: everything stays."""
        raise RunError(f"group {group} was asked for, although its parameters stay")

    def hold(self, held: HeldSteps, make_state: Callable[[], State]) -> bool:
        """Nobody has anything for itself."""
        return False

    def agree(self, flags: NDArray[np.float64]) -> None:
        """Do nothing: each reads for itself."""


class Replicas(Undivided):
    """Every worker updates all parameters itself (ZeRO's stage 0)."""

    def __init__(self, communicator: Communicator, arenas: Arenas, updates: ByEveryWorker) -> None:
        self._communicator = communicator
        self._arenas = arenas
        self._updates = updates

    @override
    def bring(self) -> None:
        self._communicator.broadcast(self._arenas.parameters)

    @override
    def operation(self, key: OperationKey, chunks: Chunks, loss_scale: float) -> Operation:
        update = partial(self._updates.received_all, step=key.at.step, group=key.group)
        ring = Ring(self._communicator.rank, chunks)
        return Operation(key, self._arenas.gradients, self._arenas.value_type, ring, on_final=update)

    @override
    def apply(self, at: At, loss_scale: float, events: RouteEvents) -> None:
        self._updates.apply(at.step)
        events.applied(at)

    @override
    def held(self) -> Held:
        return self._updates.held()


class Means(Undivided):
    """Nobody updates: the mean gradients come back, into the arena that the gradients lie in.

    With `checks` means that are not finite are an error.
    """

    def __init__(self, communicator: Communicator, arenas: Arenas, *, checks: bool = False) -> None:
        self._communicator = communicator
        self._arenas = arenas
        self._checks = checks

    @override
    def bring(self) -> None:
        self._communicator.broadcast(self._arenas.parameters)

    @override
    def operation(self, key: OperationKey, chunks: Chunks, loss_scale: float) -> Operation:
        communicator, arenas = self._communicator, self._arenas
        # By whoever completes a sum, before it goes on: all others copy.
        scale = 1.0 / communicator.size
        operation = Operation(key, arenas.gradients, arenas.value_type, Ring(communicator.rank, chunks), scale=scale)
        if self._checks:
            operation.on_final = partial(self._check, key)
        return operation

    def _check(self, key: OperationKey, frames: Sequence[FrameSpec]) -> None:
        arenas = self._arenas
        for piece in chain.from_iterable(frame.ranges for frame in frames):
            own = arenas.gradients[piece.start : piece.stop]
            check_finite(own, key.group, key.at.step, arenas.value_type.half_kind)

    def apply(self, at: At, loss_scale: float, events: RouteEvents) -> None:
        """Nothing is updated."""
        raise RunError("mean gradients that come back are clipped by whoever updates")

    def held(self) -> Held:
        """Nothing: parameters and optimizer are the user's."""
        return Held()
