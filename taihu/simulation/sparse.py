"""The exchange of selected values between workers on the virtual clock, by the daemons' sparse allreduces.

Which values workers select is not known: each takes evenly spaced ones, and sums have as many as are expected of
workers that select independently. Ranks that are alike are one, which gets what it sends: from the rank as far behind
as the message was to go ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from typing_extensions import override

from taihu.allreduce.sparse.exchange import Message, RankOrderSum, Slice, SparseAllgather, SparseExchange
from taihu.allreduce.sparse.reduce_scatter import SparseReduceScatter
from taihu.allreduce.sparse.tree import GtopkTree
from taihu.core.base.errors import ConfigError, RunError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.planner.partition import FrameSpec, Framing, Shard, slice_bounds
from taihu.core.planner.profile import rice_bits_per_index
from taihu.core.planner.sparse_route import SparseAlgorithm as Way
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.headers import At
from taihu.simulation.network import Fabric, Path
from taihu.simulation.sizes import PASSES_OF_UPDATE, Sizes
from taihu.simulation.worker import SimulatedRoute, SimulatedWorker
from taihu.worker.exchange.base.route import Updated

_SUM_BYTES: Final = 4
_SECTION_BYTES: Final = 4
# Selections that are remembered: what comes from each rank of many is the same.
_KEPT: Final = 256

Key = tuple[int, int]


class _Selections:
    """Evenly spaced elements in the place of selected ones, and the bytes of messages with so many.

    Attributes:
        spaced: the elements of a range, start and stop, of which there are so many; nobody changes them.
        size_bytes: of a message with so many entries in a range of so many elements.
    """

    def __init__(self) -> None:
        self.spaced = lru_cache(maxsize=_KEPT)(self._spaced)
        self.size_bytes = lru_cache(maxsize=_KEPT)(_size_bytes)
        self._ones = np.ones(0, dtype=np.float32)

    def _spaced(self, start: int, stop: int, entries: int) -> Slice:
        entries = min(entries, stop - start)
        if len(self._ones) < entries:
            self._ones = np.ones(entries, dtype=np.float32)
        indices = start + np.arange(entries, dtype=np.int64) * (stop - start) // max(1, entries)
        return Slice(indices.astype(np.int32), self._ones[:entries])


def _size_bytes(entries: int, elements: int, value_bytes: float) -> float:
    share = entries / max(1, elements)
    # Where all are sent, nothing says which.
    place_bytes = float(rice_bits_per_index(np.asarray(share))) / 8.0 if share < 1.0 else 0.0
    return HEADER_BYTES + _SECTION_BYTES + entries * (value_bytes + place_bytes)


class _ExpectedSum(RankOrderSum):
    """As many values as there are expected to be in the sum of so many ranks' selections."""

    def __init__(self, ranks: int, selections: _Selections) -> None:
        super().__init__()
        self._ranks = ranks
        self._selections = selections

    def __call__(self, slices: Sequence[Slice], start: int, stop: int) -> Slice:
        kept = sum(len(part.indices) for part in slices) / max(1, len(slices))
        share = 1.0 - (1.0 - kept / max(1, stop - start)) ** self._ranks
        return self._selections.spaced(start, stop, round(share * (stop - start)))


@dataclass
class _Operation:
    """One rank's part in the allreduce of a part; `early` came before it began."""

    exchange: SparseExchange | None = None
    elements: int = 0
    on_finished: Callable[[_Operation], None] = lambda _: None
    early: list[Message] = field(default_factory=list)
    sent_bytes: float = 0.0


class _Rank:
    """One rank, or all of them."""

    def __init__(self, index: int, size: int, worker: SimulatedWorker, sizes: Sizes, fabric: Fabric) -> None:
        self.index = index
        self.worker = worker
        self._size = size
        self._sizes = sizes
        self._fabric = fabric
        self._all: Sequence[_Rank] = ()
        self.selections = _Selections()
        self._paths: dict[int, Path] = {}
        self._operations: dict[Key, _Operation] = {}

    def meet(self, ranks: Sequence[_Rank]) -> None:
        """Send to `ranks`, which may be this one alone; what is remembered of selections is one for all."""
        self._all = ranks
        self.selections = ranks[0].selections

    def start(
        self, key: Key, exchange: SparseExchange, elements: int, on_finished: Callable[[_Operation], None]
    ) -> None:
        """Take part in an operation on so many elements."""
        operation = self._operations.setdefault(key, _Operation())
        operation.exchange, operation.elements, operation.on_finished = exchange, elements, on_finished
        self._send_all(key, operation, exchange.begin())
        early, operation.early = operation.early, []
        for message in early:
            self._arrive(key, operation, message)
        self._end_if_done(key, operation)

    def take(self, key: Key, message: Message) -> None:
        """A message has come: it is added, behind what came before."""
        if self.worker.is_over:
            return
        # Unpacked and added.
        each = _SUM_BYTES / self._sizes.add_rate + 2.0 * self._sizes.selected_value_seconds
        seconds = each * len(message.indices)
        self.worker.host.memory.do(seconds, self._added, key, message)

    def _added(self, key: Key, message: Message) -> None:
        operation = self._operations.setdefault(key, _Operation())
        if operation.exchange is None:
            operation.early.append(message)
            return
        self._arrive(key, operation, message)
        self._end_if_done(key, operation)

    def _arrive(self, key: Key, operation: _Operation, message: Message) -> None:
        assert operation.exchange is not None  # noqa: S101
        self._send_all(key, operation, operation.exchange.arrive(message))

    def _end_if_done(self, key: Key, operation: _Operation) -> None:
        if operation.exchange is not None and operation.exchange.done:
            del self._operations[key]
            operation.on_finished(operation)

    def _send_all(self, key: Key, operation: _Operation, messages: Sequence[Message]) -> None:
        for message in messages:
            value_bytes = self._sizes.selected_value_bytes if message.is_own else _SUM_BYTES
            size = self.selections.size_bytes(len(message.indices), message.stop - message.start, value_bytes)
            operation.sent_bytes += size
            if len(self._all) > 1:
                target, received = self._all[message.to], message
            else:
                target, received = self, self._mirrored(message, operation.elements)
            self._path(target).send(size, target.take, key, received)

    def _mirrored(self, message: Message, elements: int) -> Message:
        """The message that comes when this rank sends one: as much, from the rank as far behind as that is ahead.

        Of a range it is a contribution to the own one, or the sum of the sender's.
        """
        sender = (2 * self.index - message.to) % self._size
        start, stop = message.start, message.stop
        if (start, stop) != (0, elements):
            owner = self.index if message.round < self._size - 1 else sender
            start, stop = slice_bounds(elements, self._size, owner)
        part = self.selections.spaced(start, stop, len(message.indices))
        return Message(self.index, sender, message.round, part.indices, part.values, start, stop, message.is_own)

    def _path(self, target: _Rank) -> Path:
        path = self._paths.get(target.index)
        if path is None:
            path = self._fabric.to_neighbour(self.worker.host, target.worker.host, self._size)
            self._paths[target.index] = path
        return path


class SparseRingRoute(SimulatedRoute):
    """One rank's sparse allreduces, as `taihu.worker.exchange.ring.sparse` starts them."""

    def __init__(self, rank: _Rank, job: Job, plan: Plan, sizes: Sizes) -> None:
        self._rank, self._plan, self._sizes = rank, plan, sizes
        self._size = job.world.workers
        self._is_dense = job.downlink == "dense"
        self._framing = Framing(Shard(plan.layout, 1, 0), plan.groups, plan.frame_elements)
        self._numbers = {frame.offset: number for number, frame in enumerate(self._framing.frames)}
        self._sum = _ExpectedSum(self._size, rank.selections)
        self._at = At(0, 0)

    @override
    def parts(self, group: int) -> int:
        """The frames of the group, each of which has an allreduce of its own."""
        return len(self._framing.by_group[group])

    @override
    def begin(self, at: At) -> None:
        self._at = at

    @override
    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        """Begin the allreduce of every part of the group; its bytes are known when it has ended."""
        at, worker, start = self._at, self._rank.worker, self._rank.worker.queue.now
        for frame in self._framing.by_group[group]:
            exchange = self._exchange(frame)

            def finished(
                operation: _Operation, frame: FrameSpec = frame, exchange: SparseExchange = exchange
            ) -> None:
                updated = frame.count if self._is_dense else len(exchange.result().indices)
                seconds = PASSES_OF_UPDATE * _SUM_BYTES * updated / self._sizes.add_rate
                worker.host.memory.do(seconds, self._applied, at, frame.group, start, operation.sent_bytes)

            self._rank.start((at.step, self._numbers[frame.offset]), exchange, frame.count, finished)
        return 0

    @override
    def apply(self, at: At, loss_scale: float) -> None:
        """Refuse: what is selected has no whole norm."""
        raise RunError("compressed gradients are not clipped together")

    @override
    def fetch(self, group: int, step: int) -> None:
        """Refuse: all parameters stay."""
        raise RunError(f"group {group} was asked for, although its parameters stay")

    def agree(self, told: Callable[[], None]) -> None:
        """No step is skipped."""
        told()

    def _applied(self, at: At, group: int, start: float, size_bytes: float) -> None:
        worker = self._rank.worker
        worker.tracer.add("sparse", "allreduce", start, worker.queue.now, step=at.step, group=group)
        # As much comes as goes.
        worker.updated(Updated(group, at, round(size_bytes), round(size_bytes)))

    def _exchange(self, frame: FrameSpec) -> SparseExchange:
        kept = max(1, round(self._sizes.added(frame) / _SUM_BYTES))
        own, rank, elements = self._rank.selections.spaced(0, frame.count, kept), self._rank.index, frame.count
        match self._plan.routes[frame.group]:
            case Way.GTOPK:
                return GtopkTree(own, rank=rank, size=self._size, elements=elements, k=kept)
            case Way.REDUCE_SCATTER:
                return SparseReduceScatter(own, rank=rank, size=self._size, elements=elements, summation=self._sum)
            case _:
                return SparseAllgather(own, rank=rank, size=self._size, elements=elements, summation=self._sum)


def join_sparse(
    workers: Sequence[SimulatedWorker], job: Job, plan: Plan, sizes: Sizes, fabric: Fabric
) -> list[SimulatedRoute]:
    """The route of every worker: either there is one that stands for all, or each stands for itself.

    Raises:
        ConfigError: one is to stand for all where ranks have different parts in a tree.
    """
    if len(workers) < job.world.workers and Way.GTOPK in plan.routes:
        raise ConfigError("compression.downlink 'doublesqueeze' in a ring: ranks of its tree differ; give --distinct")
    ranks = [_Rank(index, job.world.workers, worker, sizes, fabric) for index, worker in enumerate(workers)]
    for rank in ranks:
        rank.meet(ranks)
    return [SparseRingRoute(rank, job, plan, sizes) for rank in ranks]
