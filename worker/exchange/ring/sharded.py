"""The ring exchange with ZeRO: every worker updates a part of the parameters, and keeps the optimizer state of that.

Methods section 5. Gradients are summed by a reduce-scatter; whoever completes a sum updates that part, and what goes
on around the ring is the result (stages 1 and 2), or nothing until somebody needs it (stage 3: gathered by an
allgather before forward and again before backward). Sums have the order of a ring without ZeRO, and so have results
its bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from allreduce.ring.operation import Operation, OperationKey
from allreduce.ring.schedule import Ring, summed_by
from kernels.half import from_half, to_half
from taihu.coordination.plan import Plan
from taihu.optimization import OptimizerState, in_steps
from taihu.planner.groups import group_bounds
from taihu.planner.partition import FrameSpec, Piece, Shard
from taihu.wire.codec import ValueType
from worker.exchange.ring.dense import RingExchange
from worker.memory.initial_parameters import InitialParameters

__all__ = ["ShardedRingExchange"]

_FIRST_GATHER: Final = 1 << 30
"""Groups of gathers are numbered from here on, beside those of sums."""

Values = NDArray[np.float32]


class ShardedRingExchange(RingExchange):
    """See `RingExchange`; the arenas are those of the job's stage of ZeRO."""

    def __init__(self, *, initial: InitialParameters | None = None, **of_ring: Any) -> None:
        self._initial = initial
        self._gathers: list[int] = []
        self._wanted: dict[int, float] = {}
        self._total: Values = np.empty(0, dtype=np.float32)
        super().__init__(**of_ring)
        # So much of every worker's sums to what 16 bits can hold.
        self._largest /= self._communicator.size

    def _prepare_optimizer(self) -> None:
        size = self._communicator.size
        self._chunk = summed_by(self._communicator.rank, size)
        elements = Shard(self.plan.layout, size, self._chunk).elements
        self._state = OptimizerState(in_steps(self._job.server_optimizer, self.plan.length), elements)
        self._state.warm_up()
        # In other stages they lie in the arena that holds all parameters.
        self._own: Values = np.zeros(elements if self._memory.fetches else 0, dtype=np.float32)

    def _bring_parameters(self) -> None:
        if not self._memory.fetches:
            super()._bring_parameters()
            return
        for group, (start, stop) in enumerate(group_bounds(self.plan.layout, self.groups)):
            if self._communicator.rank == 0 and self._initial is not None:
                self._initial.prepare(FrameSpec(group, start, stop - start, (Piece(start, stop),)))
            self._communicator.broadcast(self._arenas.parameters[start:stop])
            for own, piece in self._own_pieces(group):
                np.copyto(own, self._arenas.parameters[piece.start : piece.stop])
            assert self._arenas.parameter_pages is not None  # noqa: S101
            self._arenas.parameter_pages.release(start, stop)
        self._memory.close()

    def _set_plan(self, plan: Plan) -> None:
        super()._set_plan(plan)
        self._gathers = [0] * len(plan.groups)

    def agree(self, flags: NDArray[np.float64]) -> None:
        """See `GradientExchange.agree`."""
        if self._memory.fetches:
            self._communicator.broadcast(flags, ValueType.FP64)

    def _agree_on_skipping(self) -> None:
        overflowed = np.array([self._gradients.overflowed], dtype=np.float32)
        self._communicator.allreduce(overflowed)
        self._gradients.skipped = bool(overflowed[0])

    def _submit(self, group: int) -> None:
        if not self._gradients.skipped:
            super()._submit(group)
            return
        times = self._times[group]
        times.selected = times.elements
        times.submitted_s = times.first_completed_s = times.completed_s = times.answered_s = self._clock.now()
        with self._guard:
            self._memory.summed(group)

    def _operation(self, group: int) -> Operation:
        fetched = self._job.zero == 3
        ring = Ring(self._communicator.rank, self._chunks[group], "reduce-scatter" if fetched else "both")
        operation = Operation(
            OperationKey(self.plan.version, self._step, 0, group),
            self._arenas.sent,
            self._arenas.value_type,
            ring,
            results=None if fetched else self._arenas.received,
            on_complete=partial(self._update_own, group),
        )
        operation.on_finished = partial(self._finished, group, operation)
        return operation

    def _update_own(self, group: int, frame: FrameSpec) -> None:
        """The sum of a part that this worker owns is complete: apply it."""
        scale = 1.0 / (self._communicator.size * self.loss_scale)
        half = self._arenas.half
        taken = frame.offset
        for piece in frame.pieces:
            gradient = self._sum_of(piece)
            self._check_finite(group, gradient)
            parameters = self._own[taken:] if self._memory.fetches else self._arenas.parameters[piece.start :]
            parameters = parameters[: len(gradient)]
            self._state.update(taken, parameters, gradient, self._step, scale)
            if half is not None and half.keeps:
                to_half(parameters, half.kind, half.parameters[piece.start : piece.stop])
            taken += len(gradient)

    def _sum_of(self, piece: Piece) -> Values:
        """The complete sum of a range, in fp32; valid until the next call, which comes from the same thread."""
        half = self._arenas.half
        if half is None:
            return self._arenas.gradients[piece.start : piece.stop]
        count = piece.stop - piece.start
        if len(self._total) < count:
            self._total = np.empty(count, dtype=np.float32)
        from_half(half.gradients[piece.start : piece.stop], half.kind, self._total[:count])
        return self._total[:count]

    def _ask(self, group: int) -> None:
        """Gather the group from all workers, who all do so as often; when it has been summed, if it has not."""
        asked_s = self._clock.now()
        if self._memory.is_summing(group):
            self._wanted[group] = asked_s
        else:
            self._gather(group, asked_s)

    def _finished(self, group: int, operation: Operation) -> None:
        super()._finished(group, operation)
        with self._guard:
            asked_s = self._wanted.pop(group, None)
        if asked_s is not None:
            self._gather(group, asked_s)

    def _gather(self, group: int, asked_s: float) -> None:
        half = self._arenas.half
        for own, piece in self._own_pieces(group):
            place = self._arenas.received[piece.start : piece.stop]
            if half is None:
                np.copyto(place, own)
            else:
                to_half(own, half.kind, place)
        self._gathers[group] += 1
        operation = Operation(
            OperationKey(self.plan.version, self._gathers[group], 0, _FIRST_GATHER + group),
            self._arenas.received,
            self._arenas.value_type,
            Ring(self._communicator.rank, self._chunks[group], "allgather"),
        )
        operation.on_finished = partial(self._gathered, group, operation, asked_s)
        self._communicator.start(operation)

    def _gathered(self, group: int, operation: Operation, asked_s: float) -> None:
        self._memory.widen(group)
        with self._guard:
            self._memory.arrived(group)
        times = self._times[group]
        times.fetch_bytes_up += operation.sent_bytes
        times.fetch_bytes_down += operation.received_bytes
        self._tracer.add("fetch", "fetch", asked_s, self._clock.now(), step=self._step, group=group)

    def _own_pieces(self, group: int) -> Iterator[tuple[Values, Piece]]:
        """Of this worker's chunk of the group: where it is kept, and which range of all it is."""
        for frame in self._chunks[group][self._chunk]:
            taken = frame.offset
            for piece in frame.pieces:
                count = piece.stop - piece.start
                yield self._own[taken : taken + count], piece
                taken += count
