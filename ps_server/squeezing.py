"""Sums that are compressed again on their way back, and the choice of what sums the contributions of a job.

What is left out of a sum, or taken away from it, waits here and is added to a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.core.compression import Compressor, Unit
from taihu.core.compression.balance import Weighed, Weighing
from taihu.core.job import Job
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import ValueType
from taihu.kernels.packing.few_bits import FEW_BITS, round_sums
from taihu.kernels.packing.few_bits import warm_up as warm_up_few_bits
from taihu.kernels.selection.scatter import scatter_assign
from taihu.kernels.selection.select import clear
from taihu.ps_server.summing import (
    Codes,
    DenseSumming,
    HalfSumming,
    Scratch,
    SparseContribution,
    SparseSum,
    SparseSumming,
    Summing,
)

Values = NDArray[np.float32]
OnSqueezed = Callable[[FrameSpec, SparseSum, Weighed], None]


class SqueezedSumming(SparseSumming):
    """The sum is compressed again, with error feedback here: DoubleSqueeze, docs/methods.md section 1.6 (b).

    The servers change exactly the parameters that they send, so replicas stay equal to the last bit.

    Args:
        parameters: the shard's, shape (n,), fp32.
        compressor: selects from the sums; what it leaves out waits in a residual. Where its thresholds belong to
            layers, each layer of a frame has one; otherwise the frame has.
        on_squeezed: called with each sum, and the balance of what is left out of it, if anybody wants that.
    """

    def __init__(self, parameters: Values, compressor: Compressor, on_squeezed: OnSqueezed | None = None) -> None:
        self._parameters = parameters
        self._on_squeezed = on_squeezed
        self._compressor = compressor
        self._by_layer = compressor.unit == "layer"
        self._state = compressor.init(len(parameters), ())
        self._sums = np.zeros_like(parameters)
        self._units: dict[int, range] = {}

    @override
    def adopt(self, frames: Sequence[FrameSpec]) -> None:
        """Take the framing; what was held back stays, and the thresholds of ranges that are there still."""
        self._units, units = {}, list[Unit]()
        for frame in frames:
            bounds = frame.shard_bounds.tolist() if self._by_layer else [(frame.offset, frame.offset + frame.count)]
            self._units[frame.offset] = range(len(units), len(units) + len(bounds))
            units += (Unit(start, stop, frame.group) for start, stop in bounds)
        self._state.rebind(units)

    @override
    def state(self) -> dict[str, NDArray[Any]]:
        state = self._state
        return {
            "residual": state.residual,
            "thresholds": state.thresholds,
            "ages": state.ages,
            "kept": state.kept,
        }

    @override
    def sum(
        self, frame: FrameSpec, step: int, contributions: Sequence[SparseContribution], scratch: Scratch
    ) -> SparseSum:
        total = super().sum(frame, step, contributions, scratch)
        scatter_assign(total.indices, total.values, self._sums)
        weighing = None
        if self._on_squeezed is not None:
            weighing = Weighing(self._compressor, self._state, frame.offset, frame.offset + frame.count)
        outcome = self._compressor.update(
            self._state,
            self._units[frame.offset],
            step,
            gradient=self._sums,
            parameters=self._parameters,
            indices=scratch.chosen,
            values=scratch.packed,
        )
        count = int(outcome.selected.sum())
        squeezed = SparseSum(scratch.chosen[:count], scratch.packed[:count])
        if weighing is not None and self._on_squeezed is not None:
            weighed = weighing.weighed(self._sums, self._parameters, squeezed.indices, squeezed.values)
            self._on_squeezed(frame, total, weighed)
        clear(self._sums, total.indices)
        return squeezed


class RoundedSumming(SparseSumming):
    """The sum is rounded to a few bits; what that takes away waits here, and is added to the next sum of its place.

    Args:
        elements: of the shard.
        bits: of a value.
        on_squeezed: as `SqueezedSumming` has it.
    """

    def __init__(self, elements: int, bits: int, on_squeezed: OnSqueezed | None = None) -> None:
        self._residual = np.zeros(elements, dtype=np.float32)
        self._bits = bits
        self._on_squeezed = on_squeezed
        warm_up_few_bits()

    @override
    def state(self) -> dict[str, NDArray[Any]]:
        return {"residual": self._residual}

    @override
    def sum(
        self, frame: FrameSpec, step: int, contributions: Sequence[SparseContribution], scratch: Scratch
    ) -> SparseSum:
        total = super().sum(frame, step, contributions, scratch)
        own = self._residual[frame.offset : frame.offset + frame.count]
        before = own.copy() if self._on_squeezed is not None else own
        steps = scratch.steps[: len(frame.shard_bounds)]
        count = round_sums(
            self._residual,
            total.indices,
            total.values,
            frame.shard_bounds,
            self._bits,
            scratch.chosen,
            scratch.packed,
            scratch.codes,
            steps,
        )
        rounded = SparseSum(scratch.chosen[:count], scratch.packed[:count], Codes(scratch.codes[:count], steps))
        if self._on_squeezed is not None:
            self._on_squeezed(frame, total, _weighed(frame, total, rounded, before, own))
        return rounded


def _weighed(frame: FrameSpec, total: SparseSum, rounded: SparseSum, before: Values, residual: Values) -> Weighed:
    """The balance of what rounding has left, of the frame's elements."""
    owed, after, alone = before.copy(), residual.copy(), np.zeros_like(before)
    owed[total.indices - np.int32(frame.offset)] += total.values
    alone[rounded.indices - np.int32(frame.offset)] = rounded.values
    return Weighed(before, owed, after, after + alone, alone, rounded=True)


def make_summing(job: Job, parameters: Values, on_squeezed: OnSqueezed | None = None) -> Summing[Any]:
    """The way that the job's contributions are summed; `adopt` comes before the first frame.

    `on_squeezed` is told of sums that are compressed again, or rounded.
    """
    compression = job.compression
    value_type = ValueType.named(job.train.precision)
    if value_type.half_kind is not None:
        return HalfSumming(value_type, value_type.half_kind)
    if not compression.method.selects:
        return DenseSumming()
    if compression.rounds_sums:
        return RoundedSumming(len(parameters), FEW_BITS[compression.downlink_value_type], on_squeezed)
    if job.downlink != "doublesqueeze":
        return SparseSumming()
    method = compression.method
    compressor = Compressor(
        # Thresholds whose units are a setting are by layers here, if it says so; those of others are by groups.
        method=method if method.unit is None else replace(method, unit="group"),
        density=compression.share,
        refresh_every=compression.refresh_every if method.reuses else 1,
        density_warmup_steps=compression.density_warmup_steps,
        threshold=compression.threshold,
        slack=compression.slack,
    )
    return SqueezedSumming(parameters, compressor, on_squeezed)
