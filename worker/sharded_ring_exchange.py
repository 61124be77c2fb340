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

from allreduce.operation import Operation, OperationKey
from allreduce.ring import Ring, summed_by
from taihu.coordination.plan import Plan
from taihu.optimization import OptimizerState
from taihu.planner.groups import group_bounds
from taihu.planner.partition import FrameSpec, Piece, Shard
from taihu.wire.codec import ValueType
from worker.initial_parameters import InitialParameters
from worker.ring_exchange import RingExchange

__all__ = ["ShardedRingExchange"]

_FIRST_GATHER: Final = 1 << 30
"""Groups of gathers are numbered from here on, beside those of sums."""

Values = NDArray[np.float32]


class ShardedRingExchange(RingExchange):
    """See `RingExchange`; the arenas are those of the job's stage of ZeRO."""

    def __init__(self, *, initial: InitialParameters | None = None, **of_ring: Any) -> None:
        self._initial = initial
        self._gathers: list[int] = []
        super().__init__(**of_ring)

    def _prepare_optimizer(self) -> None:
        size = self._communicator.size
        self._chunk = summed_by(self._communicator.rank, size)
        elements = Shard(self.plan.layout, size, self._chunk).elements
        self._state = OptimizerState(self._job.server_optimizer, elements)
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
            for own, whole in self._own_ranges(group):
                np.copyto(own, whole)
            assert self._arenas.parameter_pages is not None  # noqa: S101
            self._arenas.parameter_pages.release(start, stop)
        self._memory.close()

    def _set_plan(self, plan: Plan) -> None:
        super()._set_plan(plan)
        self._gathers = [0] * len(plan.groups)

    @property
    def _keeps_all(self) -> bool:
        return self._communicator.rank == 0

    def agree(self, flags: NDArray[np.float64]) -> None:
        """See `GradientExchange.agree`."""
        if self._memory.fetches:
            self._communicator.broadcast(flags, ValueType.FP64)

    def _operation(self, group: int) -> Operation:
        fetches = self._memory.fetches
        ring = Ring(self._communicator.rank, self._chunks[group], "reduce-scatter" if fetches else "both")
        operation = Operation(
            OperationKey(self._step, group),
            self._arenas.gradients,
            ValueType.FP32,
            ring,
            results=None if fetches else self._arenas.parameters,
            on_complete=partial(self._update_own, group),
        )
        operation.on_finished = partial(self._finished, group, operation)
        return operation

    def _update_own(self, group: int, frame: FrameSpec) -> None:
        """The sum of a part that this worker owns is complete: apply it."""
        scale = 1.0 / self._communicator.size
        taken = frame.offset
        for piece in frame.pieces:
            gradient = self._arenas.gradients[piece.start : piece.stop]
            self._check_finite(group, gradient)
            parameters = self._own[taken:] if self._memory.fetches else self._arenas.parameters[piece.start :]
            self._state.update(taken, parameters[: len(gradient)], gradient, self._step, scale)
            taken += len(gradient)

    def _ask(self, group: int) -> None:
        """Gather the group from all workers, who do so in this order too."""
        for own, whole in self._own_ranges(group):
            np.copyto(whole, own)
        self._gathers[group] += 1
        operation = Operation(
            OperationKey((self.plan.version << 32) + self._gathers[group], _FIRST_GATHER + group),
            self._arenas.parameters,
            ValueType.FP32,
            Ring(self._communicator.rank, self._chunks[group], "allgather"),
        )
        operation.on_finished = partial(self._gathered, group, operation, self._clock.now())
        self._communicator.start(operation)

    def _gathered(self, group: int, operation: Operation, asked_s: float) -> None:
        with self._guard:
            self._memory.arrived(group)
        times = self._times[group]
        times.fetch_bytes_up += operation.sent_bytes
        times.fetch_bytes_down += operation.received_bytes
        self._tracer.add("fetch", "fetch", asked_s, self._clock.now(), step=self._step, group=group)

    def _own_ranges(self, group: int) -> Iterator[tuple[Values, Values]]:
        """Of this worker's chunk of the group: where it is kept, and where it lies in the arena."""
        for frame in self._chunks[group][self._chunk]:
            taken = frame.offset
            for piece in frame.pieces:
                count = piece.stop - piece.start
                yield self._own[taken : taken + count], self._arenas.parameters[piece.start : piece.stop]
                taken += count
