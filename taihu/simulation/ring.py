"""The exchange around a ring on the virtual clock, by the daemons' schedule: dense, and with ZeRO.

Ranks that are all alike are one: what it sends to the next one comes to itself from the one before. It has the chunk
of the last rank, of which none has a larger one, in the place of all chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.allreduce.operations import Operations
from taihu.allreduce.order.operation import Action, Arrival, Operation, OperationKey
from taihu.allreduce.ring.schedule import Chunks, Phase, Ring, buffer_layout, cut_chunks, segment_elements
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec, Shard
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.headers import At, FrameHeader, ValueType
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.links.pipe import Carrier, FrameWay
from taihu.simulation.hops import MANY_RANKS, Hops
from taihu.simulation.network import Fabric, Path
from taihu.simulation.sizes import PASSES_OF_UPDATE, Sizes
from taihu.simulation.worker import SimulatedRoute, SimulatedWorker
from taihu.worker.exchange.base.route import Arrived, Updated

_TAKEN_OVER: Final = MappingProxyType({Action.ADD: 1, Action.COMPLETE: 1, Action.REPLACE: 1})
# The number of the operation that sums squares, behind those of all gathers of a group.
_SQUARES: Final = 1 << 30
_NO_VALUES: Final = np.empty(0, dtype=np.float32)

Call = Callable[[], None]
Passes = Mapping[Action, int]
Start = Callable[[Operation, Passes], None]
"""Takes part in an operation, which takes so many passes over every segment that comes."""


class _Rank(FrameWay):
    """One rank, or all of them: the operations of a daemon, and a way to the right neighbour that has a price."""

    def __init__(self, index: int, ranks: int, worker: SimulatedWorker, job: str, sizes: Sizes) -> None:
        self.worker = worker
        self._index, self._sizes = index, sizes
        self._right: _Rank
        self._path: Path
        self._links: dict[int, FrameWay] = {}
        identity = WorkerIdentity(job, index, 1)
        self.operations = Operations(identity, ranks, self._links, is_failed=lambda: False, on_end=lambda _: None)
        # Seconds of work and, behind each, what follows; what comes before any work first.
        self._todo: list[tuple[float, list[Call]]] = []

    def meet(self, right: _Rank, path: Path) -> None:
        """Send to `right`."""
        self._right, self._path = right, path
        self._links[right._index] = self

    def start(self, operation: Operation, passes: Passes) -> None:
        """Take part in an operation, by the schedule of the daemons; see `Start`."""
        if operation.key.at.attempt > self.operations.attempt:
            self.operations.abort(operation.key.at.attempt)
        schedule = operation.schedule
        assert isinstance(schedule, Ring)  # noqa: S101 - of all dense operations
        operation.merge = partial(self._work, passes)
        operation.sent_bytes = (
            schedule.sent_segments * HEADER_BYTES + schedule.sent_elements * self._sizes.value_bytes
        )
        self._carry_out(partial(self.operations.start, operation))

    def take(self, header: FrameHeader) -> None:
        """A segment has come from the left."""
        if not self.worker.is_over:
            self._carry_out(partial(self.operations.sink.take, header, (_NO_VALUES,), False))

    def carry(self, carrier: Carrier) -> None:
        """All are as fast."""

    @override
    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        size = HEADER_BYTES + header.address.elements * self._sizes.value_bytes
        self._todo[-1][1].append(partial(self._path.send, size, self._right.take, header))

    @override
    def after(self, callback: Call, *, urgent: bool = False) -> None:
        self._todo[-1][1].append(callback)

    def _work(self, passes: Passes, operation: Operation, arrival: Arrival, values: object) -> None:
        """A segment is added, or taken over: what follows waits for that."""
        frame = arrival.segment.frame
        seconds = passes[arrival.action] * frame.count * self._sizes.value_bytes / self._sizes.add_rate
        self._todo.append((seconds, []))

    def _carry_out(self, call: Call) -> None:
        """Call, and do what that leads to when the work for it has been done."""
        todo = self._todo = [(0.0, list[Call]())]
        call()
        _call_all(todo[0][1])
        for seconds, calls in todo[1:]:
            self.worker.host.memory.do(seconds, _call_all, calls)


def _call_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


class RingRoute(SimulatedRoute):
    """One rank's operations, as `taihu.worker.exchange.ring.dense` and `sharded` start them for a stage of ZeRO."""

    def __init__(  # noqa: PLR0917 - whose, where, and by what
        self, worker: SimulatedWorker, index: int, start: Start, job: Job, rings: _Rings, update_seconds: float
    ) -> None:
        self._worker = worker
        self._index = index
        self._start = start
        self._rings = rings
        self._update_seconds = update_seconds
        self._gathers_results = job.stage.divides_parameters
        self._scatters = self._gathers_results or (job.stage.divides_optimizer and job.clips_whole)
        self._divides = job.stage.divides_optimizer
        # Whoever updates does so as soon as a part is summed, unless all are clipped together.
        update = 0 if job.clips_whole else PASSES_OF_UPDATE
        self._sum_passes = {
            Action.ADD: 1,
            Action.COMPLETE: 1 + update,
            Action.REPLACE: 1 if self._divides else 1 + update,
        }
        self._at = At(0, 0)
        self._gathers: dict[tuple[At, int], int] = {}
        self._flags = count(1)

    @override
    def parts(self, group: int) -> int:
        """One: a group ends as a whole."""
        return 1

    @override
    def begin(self, at: At) -> None:
        self._at = at

    @override
    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        """Sum the group; its bytes are known when it has been."""
        operation = self._operation(
            OperationKey(self._at, group), self._rings.chunks[group], "reduce-scatter" if self._scatters else "both"
        )
        operation.on_finished = partial(self._summed, operation, self._worker.queue.now)
        self._start(operation, self._sum_passes)
        return 0

    def _summed(self, operation: Operation, start: float) -> None:
        (at, group, _), worker, sent = operation.key, self._worker, operation.sent_bytes
        worker.tracer.add("ring", "allreduce", start, worker.queue.now, step=at.step, group=group)
        # As much comes from the left as goes to the right.
        worker.updated(Updated(group, at, sent, sent))

    @override
    def apply(self, at: At, loss_scale: float) -> None:
        """Update by the sums of all groups, after the squares of what each rank owns, where it owns a part."""
        update = partial(self._worker.work, self._update_seconds)
        if not self._divides:
            update(partial(self._worker.applied, at))
            return
        self._small(OperationKey(at, 0, _SQUARES), partial(update, partial(self._updated, at)))

    @override
    def fetch(self, group: int, step: int) -> None:
        """Gather the group's parameters; all ranks do so as often."""
        at = self._at._replace(step=step)
        number = self._gathers[at, group] = self._gathers.get((at, group), 0) + 1
        self._gather(OperationKey(at, group, number), partial(self._worker.arrived, Arrived(group, self._at.attempt)))

    def agree(self, told: Call) -> None:
        """Sum a flag."""
        self._small(OperationKey(At(0, 0, self._at.attempt), next(self._flags)), told)

    def _updated(self, at: At) -> None:
        groups = range(self._rings.groups)
        if self._gathers_results:
            self._worker.applied(at)
            return
        missing = iter(reversed(groups))

        def gathered() -> None:
            if not next(missing):
                self._worker.applied(at)

        for group in groups:
            self._gather(OperationKey(at, group, 1), gathered)

    def _gather(self, key: OperationKey, on_finished: Call) -> None:
        self._take_over(self._operation(key, self._rings.chunks[key.group], "allgather"), on_finished)

    def _small(self, key: OperationKey, on_finished: Call) -> None:
        self._take_over(self._operation(key, self._rings.flag, "both"), on_finished)

    def _take_over(self, operation: Operation, on_finished: Call) -> None:
        operation.on_finished = on_finished
        self._start(operation, _TAKEN_OVER)

    def _operation(self, key: OperationKey, chunks: Chunks, phase: Phase) -> Operation:
        return Operation(key, _NO_VALUES, ValueType.FP32, Ring(self._index, chunks, phase))


class _Rings:
    """The chunks of a job's groups, and of a flag, for ranks that are `alike` or each for itself."""

    def __init__(self, plan: Plan, size: int, value_bytes: int, *, alike: bool) -> None:
        self.groups = len(plan.groups)
        self._size = size
        self._alike = alike
        self.chunks = [self._cut(plan.layout, group, value_bytes) for group in plan.groups]
        self.flag = self._cut(buffer_layout(1), Group(0, 0), value_bytes)

    def _cut(self, layout: Layout, group: Group, value_bytes: int) -> Chunks:
        if not self._alike:
            return [_without_pieces(frames) for frames in cut_chunks(layout, group, self._size, value_bytes)]
        segment = segment_elements(layout, group, self._size, value_bytes)
        frames = Shard(layout, self._size, self._size - 1).frames((group,), segment)
        return (_without_pieces(frames),) * self._size


def _without_pieces(frames: Sequence[FrameSpec]) -> Sequence[FrameSpec]:
    """Frames of no memory."""
    return [FrameSpec(frame.group, frame.offset, frame.count, ()) for frame in frames]


def join_ring(
    workers: Sequence[SimulatedWorker], job: Job, plan: Plan, sizes: Sizes, fabric: Fabric
) -> list[SimulatedRoute]:
    """The route of every worker: either there is one that stands for all, or each stands for itself."""
    size = job.world.workers
    rings = _Rings(plan, size, sizes.value_bytes, alike=len(workers) < size)
    # Ports that ranks use beside, or in both directions in turns, are not in `Hops`.
    alone = fabric.network.full_duplex and not fabric.shares_cores and job.exchange.fc == "data"
    if alone and len(workers) > MANY_RANKS:
        hops = Hops(fabric, [worker.host for worker in workers], sizes.value_bytes, sizes.add_rate)
        starts: list[Start] = [partial(hops.start, index) for index in range(len(workers))]
    else:
        ranks = [_Rank(index, len(workers), worker, job.name, sizes) for index, worker in enumerate(workers)]
        for left, right in zip(ranks, (*ranks[1:], ranks[0]), strict=True) if size > 1 else ():
            left.meet(right, fabric.to_neighbour(left.worker.host, right.worker.host, size))
        starts = [rank.start for rank in ranks]
    update_seconds = sizes.update_seconds(size if job.stage.divides_optimizer else 1)
    return [
        RingRoute(worker, index, start, job, rings, update_seconds)
        for index, (worker, start) in enumerate(zip(workers, starts, strict=True))
    ]
