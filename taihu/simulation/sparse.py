"""The exchange of selected values between workers on the virtual clock, by the daemons' sparse allreduces.

Which values workers select is not known: each takes evenly spaced ones, and sums have as many as are expected of
workers that select independently. Ranks that are alike are one, which gets what it sends: from the rank as far behind
as the message was to go ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
from typing_extensions import override

from taihu.allreduce.operations import Operations
from taihu.allreduce.order.operation import OperationKey
from taihu.allreduce.sparse.exchange import Message, RankOrderSum, Slice, SparseExchange
from taihu.allreduce.sparse.mesh import SparseCoding, SparseOperation
from taihu.core.base.errors import ConfigError, RunError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.planner.partition import FrameSpec, Framing, slice_bounds
from taihu.core.planner.profile import rice_bits_per_index
from taihu.core.planner.sparse_route import SparseAlgorithm as Way
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.headers import At, FrameHeader
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.frames.kinds import Encoding, SparseMessage
from taihu.simulation.network import Fabric, Path
from taihu.simulation.sizes import PASSES_OF_UPDATE, Sizes
from taihu.simulation.worker import SimulatedRoute, SimulatedWorker
from taihu.worker.exchange.base.route import Updated
from taihu.worker.exchange.ring.sparse import framed, make_exchange

_SUM_BYTES: Final = 4
_SECTION_BYTES: Final = 4
# Selections that are remembered: what comes from each rank of many is the same.
_KEPT: Final = 256


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


class _Sent(NamedTuple):
    """A message in the place of its frame, whose bytes its way has counted."""

    header: FrameHeader
    message: Message
    size_bytes: int = 0


class _Rank(SparseCoding):
    """One rank, or all of them: the operations of a daemon, and ways of messages that have a price."""

    def __init__(  # noqa: PLR0917 - whose, and what is between them
        self, index: int, job: Job, worker: SimulatedWorker, sizes: Sizes, fabric: Fabric, framing: Framing
    ) -> None:
        self.index = index
        self.worker = worker
        self._size = job.world.workers
        self._sizes = sizes
        self._fabric = fabric
        self._framing = framing
        self._all: Sequence[_Rank] = ()
        self.selections = _Selections()
        self.sent_bytes: dict[OperationKey, float] = {}
        self._paths: dict[int, Path] = {}
        self._identity = WorkerIdentity(job.name, index, 1)
        self.operations = Operations(
            self._identity, self._size, {}, is_failed=lambda: False, on_end=lambda _: None, coding=self
        )

    def meet(self, ranks: Sequence[_Rank]) -> None:
        """Send to `ranks`, which may be this one alone; what is remembered of selections is one for all."""
        self._all = ranks
        self.selections = ranks[0].selections

    def take(self, sent: _Sent) -> None:
        """A message has come: it is added, behind what came before."""
        if self.worker.is_over:
            return
        # Unpacked and added.
        each = _SUM_BYTES / self._sizes.add_rate + 2.0 * self._sizes.selected_value_seconds
        self.worker.host.memory.do(each * len(sent.message.indices), self.operations.sink.take_frame, sent)

    def decode(self, operation: SparseOperation, frame: Any) -> Message:
        """The message that went in the place of a frame."""
        message: Message = frame.message
        return message

    @override
    def send_all(self, operation: SparseOperation, messages: Sequence[Message]) -> None:
        for message in messages:
            value_bytes = self._sizes.selected_value_bytes if message.is_own else _SUM_BYTES
            size = self.selections.size_bytes(len(message.indices), message.stop - message.start, value_bytes)
            self.sent_bytes[operation.key] = self.sent_bytes.get(operation.key, 0.0) + size
            if len(self._all) > 1:
                target, received = self._all[message.to], message
            else:
                target, received = self, self._mirrored(message, self._framing.frames[operation.key.number].count)
            address = operation.key.range(received.start, received.stop - received.start)
            kind = SparseMessage(received.round, operation.key.number)
            header = FrameHeader(self._identity.sender, address, kind, Encoding.SPARSE)
            self._path(target).send(size, target.take, _Sent(header, received))

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

    def __init__(  # noqa: PLR0917 - whose, and what goes
        self, rank: _Rank, job: Job, plan: Plan, sizes: Sizes, framing: Framing, numbers: Mapping[int, int]
    ) -> None:
        self._rank, self._plan, self._sizes = rank, plan, sizes
        self._size = job.world.workers
        self._is_dense = job.downlink == "dense"
        self._framing, self._numbers = framing, numbers
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
        at, worker, operations = self._at, self._rank.worker, self._rank.operations
        if at.attempt > operations.attempt:
            operations.abort(at.attempt)
        for frame in self._framing.by_group[group]:
            key = OperationKey(at, group, self._numbers[frame.offset])
            summed = partial(self._summed, frame, worker.queue.now)
            operations.start_sparse(SparseOperation(key, summed), self._exchange(frame))
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

    def _summed(self, frame: FrameSpec, start: float, operation: SparseOperation) -> None:
        assert operation.exchange is not None  # noqa: S101
        updated = frame.count if self._is_dense else len(operation.exchange.result().indices)
        seconds = PASSES_OF_UPDATE * _SUM_BYTES * updated / self._sizes.add_rate
        self._rank.worker.host.memory.do(seconds, self._applied, operation, start)

    def _applied(self, operation: SparseOperation, start: float) -> None:
        worker, at, group = self._rank.worker, operation.key.at, operation.key.group
        worker.tracer.add("sparse", "allreduce", start, worker.queue.now, step=at.step, group=group)
        # As much comes as goes.
        size = round(self._rank.sent_bytes.pop(operation.key, 0.0))
        worker.updated(Updated(group, at, size, size))

    def _exchange(self, frame: FrameSpec) -> SparseExchange:
        kept = max(1, round(self._sizes.added(frame) / _SUM_BYTES))
        own, ranks = self._rank.selections.spaced(0, frame.count, kept), (self._rank.index, self._size)
        return make_exchange(self._plan.routes[frame.group], own, ranks, frame.count, kept, self._sum)


def join_sparse(
    workers: Sequence[SimulatedWorker], job: Job, plan: Plan, sizes: Sizes, fabric: Fabric
) -> list[SimulatedRoute]:
    """The route of every worker: either there is one that stands for all, or each stands for itself.

    Raises:
        ConfigError: one is to stand for all where ranks have different parts in a tree.
    """
    if len(workers) < job.world.workers and Way.GTOPK in plan.routes:
        raise ConfigError("compression.downlink 'doublesqueeze' in a ring: ranks of its tree differ; give --distinct")
    framing, numbers = framed(plan)
    ranks = [_Rank(index, job, worker, sizes, fabric, framing) for index, worker in enumerate(workers)]
    for rank in ranks:
        rank.meet(ranks)
    return [SparseRingRoute(rank, job, plan, sizes, framing, numbers) for rank in ranks]
