"""The exchange around a ring on the virtual clock, by the daemons' schedule: dense, and with ZeRO.

Ranks that are all alike are one: what it sends to the next one comes to itself from the one before. It has the chunk
of the last rank, of which none has a larger one, in the place of all chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Final, Protocol

from typing_extensions import override

from taihu.allreduce.order.operation import Action, Segment
from taihu.allreduce.ring.schedule import Chunks, Phase, Ring, buffer_layout, cut_chunks, segment_elements
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import Shard
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.headers import At
from taihu.simulation.hops import MANY_RANKS, Hops
from taihu.simulation.network import Fabric, Path
from taihu.simulation.sizes import PASSES_OF_UPDATE, Sizes
from taihu.simulation.worker import SimulatedRoute, SimulatedWorker
from taihu.worker.exchange.base.route import Arrived, Updated

_TAKEN_OVER: Final = MappingProxyType({Action.ADD: 1, Action.COMPLETE: 1, Action.REPLACE: 1})
# In the place of a group: what is summed besides.
_SQUARES: Final = -1
_FLAG: Final = -2

Key = tuple[int, int, int]


Finished = Callable[[float], None]


class _Ranks(Protocol):
    """All ranks of a ring."""

    def start(  # noqa: PLR0917 - an operation, and whose part
        self,
        rank: int,
        key: Key,
        chunks: Chunks,
        phase: Phase,
        on_finished: Finished,
        passes: Mapping[Action, int],
    ) -> None:
        """Rank `rank` takes part in an operation, which takes so many passes over every segment that comes.

        `on_finished` gets the bytes that it sent.
        """


@dataclass
class _Operation:
    """One rank's part in an operation; `early` came before it was started."""

    schedule: Ring | None = None
    on_finished: Finished = lambda _: None
    passes: Mapping[Action, int] = field(default_factory=dict)
    early: list[Segment] = field(default_factory=list)
    sent_bytes: float = 0.0


class _Rank:
    """One rank, or all of them: takes segments from the left, and sends to the right."""

    def __init__(self, worker: SimulatedWorker, value_bytes: int, add_rate: float) -> None:
        self.worker = worker
        self.host = worker.host
        self.right: _Rank = self
        self.path: Path
        self._value_bytes = value_bytes
        self._add_rate = add_rate
        self._operations: dict[Key, _Operation] = {}

    def start(self, key: Key, schedule: Ring, on_finished: Finished, passes: Mapping[Action, int]) -> None:
        """Take part in an operation."""
        operation = self._operations.setdefault(key, _Operation())
        operation.schedule, operation.on_finished, operation.passes = schedule, on_finished, passes
        if schedule.done:
            self._finish(key)
            return
        for segment in schedule.first_segments():
            self._send(key, segment)
        early, operation.early = operation.early, []
        for segment in early:
            self.take(key, segment)

    def take(self, key: Key, segment: Segment) -> None:
        """A segment has come from the left."""
        if self.worker.is_over:
            return
        operation = self._operations.setdefault(key, _Operation())
        if operation.schedule is None:
            operation.early.append(segment)
            return
        frame = segment.frame
        arrival = operation.schedule.arrive(segment.hop, frame.offset, frame.count)
        seconds = operation.passes[arrival.action] * frame.count * self._value_bytes / self._add_rate
        self.host.memory.do(seconds, self._taken, key, arrival.forward, operation.schedule.done)

    def _taken(self, key: Key, forward: Segment | None, is_last: bool) -> None:
        if forward is not None:
            self._send(key, forward)
        if is_last:
            self._finish(key)

    def _finish(self, key: Key) -> None:
        operation = self._operations.pop(key)
        operation.on_finished(operation.sent_bytes)

    def _send(self, key: Key, segment: Segment) -> None:
        size = HEADER_BYTES + segment.frame.count * self._value_bytes
        self._operations[key].sent_bytes += size
        self.path.send(size, self.right.take, key, segment)


class _EachRank:
    """Every rank for itself, or one for all: message by message."""

    def __init__(self, fabric: Fabric, workers: Sequence[SimulatedWorker], size: int, sizes: Sizes) -> None:
        self._ranks = [_Rank(worker, sizes.value_bytes, sizes.add_rate) for worker in workers]
        for left, right in zip(self._ranks, (*self._ranks[1:], self._ranks[0]), strict=True):
            left.right = right
            left.path = fabric.to_neighbour(left.host, right.host, size)

    def start(  # noqa: PLR0917 - an operation, and whose part
        self,
        rank: int,
        key: Key,
        chunks: Chunks,
        phase: Phase,
        on_finished: Finished,
        passes: Mapping[Action, int],
    ) -> None:
        """By the schedule of the daemons."""
        self._ranks[rank].start(key, Ring(rank, chunks, phase), on_finished, passes)


class RingRoute(SimulatedRoute):
    """One rank's operations, as `taihu.worker.exchange.ring.dense` and `sharded` start them for a stage of ZeRO."""

    def __init__(  # noqa: PLR0917 - whose, where, and by what
        self, worker: SimulatedWorker, index: int, ranks: _Ranks, job: Job, rings: _Rings, update_seconds: float
    ) -> None:
        self._worker = worker
        self._index = index
        self._ranks = ranks
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
        self._gathers: dict[tuple[int, int, int], int] = {}
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
        at, start = self._at, self._worker.queue.now

        def finished(size: float) -> None:
            now = self._worker.queue.now
            self._worker.tracer.add("ring", "allreduce", start, now, step=at.step, group=group)
            # As much comes from the left as goes to the right.
            self._worker.updated(Updated(group, at, round(size), round(size)))

        phase: Phase = "reduce-scatter" if self._scatters else "both"
        key, chunks = (at.step, group, 0), self._rings.chunks[group]
        self._ranks.start(self._index, key, chunks, phase, finished, self._sum_passes)
        return 0

    @override
    def apply(self, at: At, loss_scale: float) -> None:
        """Update by the sums of all groups, after the squares of what each rank owns, where it owns a part."""
        update = partial(self._worker.work, self._update_seconds)
        if not self._divides:
            update(partial(self._worker.applied, at))
            return
        self._small((at.step, _SQUARES, 0), partial(update, partial(self._updated, at)))

    @override
    def fetch(self, group: int, step: int) -> None:
        """Gather the group's parameters; all ranks do so as often."""
        number = self._gathers[step, self._at.attempt, group] = (
            self._gathers.get((step, self._at.attempt, group), 0) + 1
        )
        self._gather((step, group, number), partial(self._worker.arrived, Arrived(group, self._at.attempt)))

    def agree(self, told: Callable[[], None]) -> None:
        """Sum a flag."""
        self._small((next(self._flags), _FLAG, 0), told)

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
            self._gather((at.step, group, 1), gathered)

    def _gather(self, key: Key, on_finished: Callable[[], None]) -> None:
        chunks = self._rings.chunks[key[1]]
        self._ranks.start(self._index, key, chunks, "allgather", lambda _: on_finished(), _TAKEN_OVER)

    def _small(self, key: Key, on_finished: Callable[[], None]) -> None:
        self._ranks.start(self._index, key, self._rings.flag, "both", lambda _: on_finished(), _TAKEN_OVER)


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
            return cut_chunks(layout, group, self._size, value_bytes)
        segment = segment_elements(layout, group, self._size, value_bytes)
        return (Shard(layout, self._size, self._size - 1).frames((group,), segment),) * self._size


def join_ring(
    workers: Sequence[SimulatedWorker], job: Job, plan: Plan, sizes: Sizes, fabric: Fabric
) -> list[SimulatedRoute]:
    """The route of every worker: either there is one that stands for all, or each stands for itself."""
    size = job.world.workers
    rings = _Rings(plan, size, sizes.value_bytes, alike=len(workers) < size)
    # Ports that ranks use beside, or in both directions in turns, are not in `Hops`.
    alone = fabric.network.full_duplex and not fabric.shares_cores and job.exchange.fc == "data"
    ranks: _Ranks
    if alone and len(workers) > MANY_RANKS:
        ranks = Hops(fabric, [worker.host for worker in workers], sizes.value_bytes, sizes.add_rate)
    else:
        ranks = _EachRank(fabric, workers, size, sizes)
    update_seconds = sizes.update_seconds(size if job.stage.divides_optimizer else 1)
    return [RingRoute(worker, index, ranks, job, rings, update_seconds) for index, worker in enumerate(workers)]
