"""The route between workers for compressed gradients: what they selected is summed by a sparse allreduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import OperationKey
from taihu.allreduce.sparse.exchange import RankOrderSum, Slice, SparseAllgather, SparseExchange
from taihu.allreduce.sparse.few_bits import FewBits, StepPieces
from taihu.allreduce.sparse.mesh import SparseOperation
from taihu.allreduce.sparse.reduce_scatter import SparseReduceScatter
from taihu.allreduce.sparse.tree import GtopkTree
from taihu.core.base.errors import RunError
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import State
from taihu.core.compression import GroupCompressor, Selection
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.planner.partition import FrameSpec, Framing, Shard
from taihu.core.planner.sparse_route import SparseAlgorithm as Way
from taihu.core.system.threads import Lock
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.frames.headers import At
from taihu.kernels.selection.scatter import scatter_assign
from taihu.kernels.selection.select import clear
from taihu.worker.exchange.base.recording import Recording
from taihu.worker.exchange.base.route import Held, Route, RouteEvents, Updated
from taihu.worker.exchange.base.updates import check_finite, held_by_all, optimizer_of
from taihu.worker.exchange.ring.peer_path import PeerPath
from taihu.worker.memory.arenas import Arenas


class SparseRoute(Route):
    """A route; the communicator, which is connected to a mesh, is not closed here.

    A group is summed in parts, each by a sparse allreduce of its own that takes the plan's way. What such an
    allreduce rejects goes back to this worker's residual. Every worker updates all parameters itself.
    """

    shares_sums = 1

    def __init__(  # noqa: PLR0917 - one of each
        self,
        job: Job,
        plan: Plan,
        communicator: Communicator,
        arenas: Arenas,
        events: RouteEvents,
        recording: Recording,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._is_dense = job.downlink == "dense"
        self._checks = job.refuses_non_finite
        self._communicator = communicator
        self.path: PeerPath = PeerPath(communicator, job.exchange.transport, plan.carriage, events)
        self._arenas = arenas
        self._events = events
        self._recording = recording
        self._clock = clock or SystemClock()
        self._tracer = tracer or Tracer.off()
        self._optimizer = optimizer_of(job, plan, arenas)
        self._optimizer.warm_up()
        self._sums = {way: RankOrderSum() for way in Way}
        # Receivers of several peers may complete parts at the same time.
        self._applying = Lock()
        self._total = np.zeros(plan.layout.elements if self._is_dense else 0, dtype=np.float32)
        self._at = At(0, 0)
        self._plan = plan
        self._framing, self._numbers = framed(plan)

    @override
    def start(self) -> None:
        self._communicator.broadcast(self._arenas.parameters)
        self.path.open(self._arenas.shared)

    @override
    def held(self) -> Held:
        return held_by_all(self._optimizer)

    def hold(self, held: HeldSteps, make_state: Callable[[], State]) -> bool:
        """All workers have the same."""
        return False

    def keep(self, step: int, *, until_durable: bool) -> None:
        """Workers update for themselves."""

    @override
    def adopt(self, plan: Plan) -> None:
        self._plan = plan
        self.path.adopt(plan)
        self._framing, self._numbers = framed(plan)

    @override
    def parts(self, group: int) -> int:
        return len(self._framing.by_group[group])

    @override
    def begin(self, at: At) -> None:
        self._at = at
        if self.path.is_trial or at.attempt > self.path.attempt:
            self.path.begin(at)

    def tell(self, rates: Sequence[float]) -> None:
        """Refuse: workers of a ring update by the job's own optimizer, or not at all."""
        raise RunError("learning rates of a script are told to servers")

    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        """All gradients go around a ring, see `ring.dense`."""
        raise RunError("gradients that are not compressed go around a ring")

    @override
    def apply(self, at: At, loss_scale: float) -> None:
        """Refuse: what is selected has no whole norm."""
        raise RunError("compressed gradients are not clipped together")

    def send_selected(self, group: int, selection: Selection, compressor: GroupCompressor) -> int:
        """Begin the allreduce of every part of the group."""
        at, start_s = self._at, self._clock.now()
        values = compressor.decoded(selection)
        for frame in self._framing.by_group[group]:
            ends = np.array((frame.offset, frame.offset + frame.count), dtype=np.int32)
            inside = slice(*np.searchsorted(selection.indices, ends))
            own = Slice(selection.indices[inside] - np.int32(frame.offset), values[inside].copy())
            few_bits = None
            if compressor.value_type.few_bits:
                pieces = StepPieces(compressor.value_type, frame.arena_bounds - frame.offset)
                codes = selection.values[inside].copy()
                few_bits = FewBits(pieces, compressor.steps(selection, frame), own.indices, codes)
            operation = SparseOperation(
                OperationKey(at, frame.group, self._numbers[frame.offset]),
                partial(self._apply, at, frame, compressor, start_s),
                few_bits,
            )
            self._communicator.start_sparse(operation, self._make_exchange(frame, own, compressor))
        return 0

    def fetch(self, group: int, step: int) -> None:
        """Refuse: all parameters stay."""
        raise RunError(f"group {group} was asked for, although its parameters stay")

    def agree(self, flags: NDArray[np.float64]) -> None:
        """Do nothing: each worker reads for itself."""

    def agree_on_skipping(self, *, overflowed: bool) -> bool:
        """Do nothing: no step is skipped."""
        return False

    def _make_exchange(self, frame: FrameSpec, own: Slice, compressor: GroupCompressor) -> SparseExchange:
        way, ranks = self._plan.routes[frame.group], (self._communicator.rank, self._communicator.size)
        kept = compressor.kept(frame.count, self._at.step) if way is Way.GTOPK else 0
        return make_exchange(way, own, ranks, frame.count, kept, self._sums[way])

    def _apply(
        self, at: At, frame: FrameSpec, compressor: GroupCompressor, start_s: float, operation: SparseOperation
    ) -> None:
        """Apply the sum of a part, and keep what its allreduce rejected for later."""
        exchange = operation.exchange
        assert exchange is not None  # noqa: S101
        with self._applying:
            total, returned = exchange.result(), exchange.returned()
            if self._checks:
                check_finite(total.values, frame.group, at.step)
            places = total.indices + np.int32(frame.offset)
            recorded = self._recording.enabled
            with self._recording.updating_sparse(at.step, frame, places, total.values) if recorded else nullcontext():
                self._update(frame, places, total.values, at.step)
            self._take_back(at.step, frame, returned, compressor.state.residual)
        # All bytes count as the way up, as in a ring: they go both ways at once.
        if self._tracer.enabled:
            self._tracer.add("sparse", "allreduce", start_s, self._clock.now(), step=at.step, group=frame.group)
        sent, received = operation.sent_bytes, operation.received_bytes
        self._events.updated(Updated(frame.group, at, sent, received))

    def _take_back(self, step: int, frame: FrameSpec, returned: Slice, residual: NDArray[np.float32]) -> None:
        places = returned.indices + np.int32(frame.offset)
        if not self._recording.enabled:
            residual[places] += returned.values
            return
        before = self._recording.residual_bits(frame, residual)
        residual[places] += returned.values
        self._recording.returned(step, frame, places, returned.values, residual, before)

    def _update(self, frame: FrameSpec, indices: NDArray[np.int32], values: NDArray[np.float32], step: int) -> None:
        scale = 1.0 / self._communicator.size
        if not self._is_dense:
            self._optimizer.update_sparse(indices, values, step, scale=scale)
            return
        start, stop = frame.offset, frame.offset + frame.count
        scatter_assign(indices, values, self._total)
        self._optimizer.update(start, stop, self._total[start:stop], step, scale=scale)
        clear(self._total, indices)


def make_exchange(  # noqa: PLR0917 - what all algorithms take
    way: Way, own: Slice, ranks: tuple[int, int], elements: int, kept: int, summation: RankOrderSum
) -> SparseExchange:
    """The part of a rank in the sparse allreduce of so many elements; `ranks` are its own, and how many there are.

    A tree keeps `kept` of them; the others sum by `summation`.
    """
    rank, size = ranks
    match way:
        case Way.GTOPK:
            return GtopkTree(own, rank=rank, size=size, elements=elements, k=kept)
        case Way.REDUCE_SCATTER:
            return SparseReduceScatter(own, rank=rank, size=size, elements=elements, summation=summation)
        case _:
            return SparseAllgather(own, rank=rank, size=size, elements=elements, summation=summation)


def framed(plan: Plan) -> tuple[Framing, dict[int, int]]:
    """The frames of a plan, and their numbers by offset."""
    framing = Framing(Shard(plan.layout, 1, 0), plan.groups, plan.frame_elements)
    return framing, {frame.offset: number for number, frame in enumerate(framing.frames)}
