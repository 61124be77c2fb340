"""The exchange without servers for compressed gradients: what workers selected is summed by a sparse allreduce."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from allreduce.communicator import Communicator
from allreduce.ring.operation import OperationKey
from allreduce.sparse.allgather import SparseAllgather
from allreduce.sparse.exchange import RankOrderSum, Slice, SparseExchange
from allreduce.sparse.mesh import SparseOperation
from allreduce.sparse.reduce_scatter import SparseReduceScatter
from allreduce.sparse.tree import GtopkTree
from kernels.scatter import scatter_assign
from kernels.select import clear
from taihu.compression import UnitReport
from taihu.coordination.plan import Plan
from taihu.job import Job
from taihu.planner.partition import FrameSpec, Framing, Shard
from taihu.planner.sparse_route import Route
from taihu.trace import Tracer
from taihu.wire.clock import Clock
from worker.exchange.compressing import Compressing
from worker.exchange.group_compressor import GroupCompressor, Selection
from worker.exchange.ring.dense import RingExchange
from worker.memory.arenas import Arenas

__all__ = ["SparseRingExchange"]


class SparseRingExchange(RingExchange):
    """See `RingExchange`; the communicator is connected to a mesh.

    A group is summed in parts, each by a sparse allreduce of its own that takes the plan's route. What such an
    allreduce rejects goes back to this worker's residual.
    """

    def __init__(
        self,
        *,
        job: Job,
        plan: Plan,
        communicator: Communicator,
        arenas: Arenas,
        clock: Clock | None = None,
        on_compressed: Callable[[UnitReport], None] = lambda _: None,
        tracer: Tracer | None = None,
    ) -> None:
        self._parts: dict[int, list[SparseOperation]] = {}
        self._sums = {route: RankOrderSum() for route in Route}
        self._applying = threading.Lock()
        self._total = np.zeros(plan.layout.elements if job.downlink == "dense" else 0, dtype=np.float32)
        self._compressor = GroupCompressor(job, plan, arenas)
        super().__init__(job=job, plan=plan, communicator=communicator, arenas=arenas, clock=clock, tracer=tracer)
        self._compressing = Compressing(
            self._compressor,
            send=self._exchange_selected,
            fail=self.fail,
            on_compressed=on_compressed,
            clock=self._clock,
            tracer=self._tracer,
        )

    @property
    def residual(self) -> NDArray[np.float32]:
        """What this worker has held back, shape (elements,); nothing may be under way."""
        return self._compressor.state.residual

    def start(self) -> None:
        """See `RingExchange.start`."""
        super().start()
        self._compressing.start()

    def _set_plan(self, plan: Plan) -> None:
        super()._set_plan(plan)
        self._framing = Framing(Shard(plan.layout, 1, 0), plan.groups, plan.frame_elements)
        self._numbers = {frame.offset: number for number, frame in enumerate(self._framing.frames)}
        self._compressor.adopt(plan.groups)

    def begin(self, step: int) -> None:
        """See `GradientExchange.begin`."""
        super().begin(step)
        self._parts = {}

    def push(self, group: int) -> None:
        """See `GradientExchange.push`."""
        times = self._times[group]
        times.ready_s = self._clock.now()
        self._parts[group] = [
            SparseOperation(
                OperationKey(self.plan.version, self._step, 0, self._numbers[frame.offset]),
                partial(self._apply, frame),
            )
            for frame in self._framing.by_group[group]
        ]
        self._compressing.put(group, self._step, times)

    def complete(self, group: int) -> None:
        """See `GradientExchange.complete`."""
        for operation in self._parts.get(group, ()):
            self._communicator.wait(operation)

    def close(self) -> None:
        """See `GradientExchange.close`."""
        self._compressing.close()

    def _exchange_selected(self, group: int, selection: Selection) -> None:
        """Begin the allreduce of every part of a group."""
        chosen = Slice(selection.indices, selection.values)
        for frame, operation in zip(self._framing.by_group[group], self._parts[group], strict=True):
            inside = chosen.between(frame.offset, frame.offset + frame.count)
            own = Slice(inside.indices - np.int32(frame.offset), inside.values.copy())
            self._communicator.start_sparse(operation, self._make_exchange(frame, own))

    def _make_exchange(self, frame: FrameSpec, own: Slice) -> SparseExchange:
        rank, size = self._communicator.rank, self._communicator.size
        match route := self.plan.routes[frame.group]:
            case Route.GTOPK:
                k = self._compressor.kept(frame.count, self._step)
                return GtopkTree(own, rank=rank, size=size, elements=frame.count, k=k)
            case Route.REDUCE_SCATTER:
                kind: type[SparseReduceScatter | SparseAllgather] = SparseReduceScatter
            case _:
                kind = SparseAllgather
        return kind(own, rank=rank, size=size, elements=frame.count, summation=self._sums[route])

    def _apply(self, frame: FrameSpec, operation: SparseOperation) -> None:
        """Apply the sum of a part, and keep what its allreduce rejected for later."""
        exchange = operation.exchange
        assert exchange is not None  # noqa: S101
        with self._applying:
            total, returned = exchange.result(), exchange.returned()
            self._check_finite(frame.group, total.values)
            self._update_sparse(frame, total.indices + np.int32(frame.offset), total.values)
            self.residual[returned.indices + np.int32(frame.offset)] += returned.values
            self._count(frame.group, operation)

    def _update_sparse(self, frame: FrameSpec, indices: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        scale = 1.0 / self._communicator.size
        if self._job.downlink != "dense":
            self._optimizer.update_sparse(indices, values, self._step, scale=scale)
            return
        start, stop = frame.offset, frame.offset + frame.count
        scatter_assign(indices, values, self._total)
        self._optimizer.update(start, stop, self._total[start:stop], self._step, scale=scale)
        clear(self._total, indices)

    def _count(self, group: int, operation: SparseOperation) -> None:
        """All bytes count as the way up, as in a ring: they go both ways at once."""
        times = self._times[group]
        times.bytes_up += operation.sent_bytes
        times.bytes_down += operation.received_bytes
        times.first_completed_s = times.completed_s = times.answered_s = self._clock.now()
        self._tracer.add("sparse", "allreduce", times.ready_s, times.answered_s, step=self._step, group=group)
