"""Contributions of workers to one frame, and their sum: what the parameters are updated by.

Sums are in rank order, so that they do not depend on which contribution came first. Frames are disjoint, so different
ones may be summed at the same time from different threads, each in a scratch of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.core.base.errors import FrameError
from taihu.core.compression import Compressor, Unit
from taihu.core.compression.balance import Weighed, Weighing
from taihu.core.job import Job
from taihu.core.planner.partition import FrameSpec
from taihu.core.system.queues import Empty, SimpleQueue
from taihu.core.wire.frames.headers import Frame, ValueType, dense_values, selected_values
from taihu.core.wire.frames.kinds import Encoding, Gradients
from taihu.kernels.base.half import HalfKind, from_half
from taihu.kernels.half_sums import all_finite_half, sum_half_in_rank_order, warm_up
from taihu.kernels.packing.few_bits import FEW_BITS, STEP_BYTES, round_sums
from taihu.kernels.packing.few_bits import warm_up as warm_up_few_bits
from taihu.kernels.packing.pack import packed_bound
from taihu.kernels.reduce import all_finite, sum_in_rank_order
from taihu.kernels.selection.scatter import make_marks, scatter_assign, sum_sparse_in_rank_order
from taihu.kernels.selection.select import clear

__all__ = [
    "Codes",
    "Contribution",
    "DenseSum",
    "HalfContribution",
    "Scratch",
    "ScratchPool",
    "SparseContribution",
    "SparseSum",
    "Summing",
    "Total",
    "count_non_finite",
    "make_summing",
    "values_of",
]

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SparseContribution:
    """Values at ascending positions of the server's arena."""

    indices: NDArray[np.int32]
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HalfContribution:
    """A 16-bit value for every element, as codes of `taihu.kernels.base.half`, and what they were multiplied by.

    With `skipped` the worker's gradients of this step did not fit.
    """

    codes: NDArray[Any]
    kind: HalfKind
    loss_scale: float
    skipped: bool


Contribution = NDArray[np.float32] | SparseContribution | HalfContribution
Kind = TypeVar("Kind", NDArray[Any], HalfContribution, SparseContribution)


def count_non_finite(contribution: Contribution) -> int:
    """The number of infinite or NaN values; none of a step that is skipped because they do not fit."""
    if isinstance(contribution, HalfContribution):
        if contribution.skipped or all_finite_half(contribution.codes, contribution.kind):
            return 0
        values = np.empty(len(contribution.codes), dtype=np.float32)
        from_half(contribution.codes, contribution.kind, values)
    else:
        values = values_of(contribution)
        if all_finite(values):
            return 0
    return int(np.count_nonzero(~np.isfinite(values)))


def values_of(contribution: Contribution) -> NDArray[Any]:
    """The values of a contribution, or their codes."""
    if isinstance(contribution, HalfContribution):
        return contribution.codes
    return contribution.values if isinstance(contribution, SparseContribution) else contribution


class Scratch:
    """Room for one frame at a time; `total` is zero whenever nobody uses it."""

    def __init__(self, elements: int, layers: int, *, few_bits: bool = False) -> None:
        self.total = np.zeros(elements, dtype=np.float32)
        self.marks = make_marks(elements)
        self.indices = np.empty(elements, dtype=np.int32)
        self.values = np.empty(elements, dtype=np.float32)
        self.chosen = np.empty(elements, dtype=np.int32)
        self.packed = np.empty(elements, dtype=np.float32)
        # Steps, and codes, of values of a few bits alone.
        steps = layers if few_bits else 0
        self.sections = np.empty(steps * STEP_BYTES + packed_bound(elements, layers), dtype=np.uint8)
        self.codes = np.empty(elements if few_bits else 0, dtype=np.uint8)
        self.steps = np.empty(steps, dtype=np.float32)


class ScratchPool:
    """Scratches for `frames`: as many as were ever used at once, not one for each thread. Any thread may borrow."""

    def __init__(self, frames: Sequence[FrameSpec], *, few_bits: bool = False) -> None:
        self._few_bits = few_bits
        self._elements = max((frame.count for frame in frames), default=0)
        self._layers = max((len(frame.pieces) for frame in frames), default=0)
        self._free: SimpleQueue[Scratch] = SimpleQueue()

    @contextmanager
    def borrowed(self) -> Iterator[Scratch]:
        """Scratch that nobody else uses; it is not given back when the block fails, whatever it holds then."""
        try:
            scratch = self._free.get_nowait()
        except Empty:
            scratch = Scratch(self._elements, self._layers, few_bits=self._few_bits)
        yield scratch
        self._free.put(scratch)


@dataclass(frozen=True, slots=True)
class DenseSum:
    """A gradient for every element of a frame, shape (count,), fp32; it was computed of losses times `loss_scale`."""

    values: Values
    loss_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Codes:
    """Values as multiples of steps: a code in each byte, shape (k,), and a step for each piece of the frame, fp32."""

    codes: NDArray[np.uint8]
    steps: Values


@dataclass(frozen=True, slots=True)
class SparseSum:
    """Gradients, shape (k,), fp32, at ascending positions of the server's arena, shape (k,), int32; else zero.

    `codes` are those of values that have a few bits.
    """

    indices: NDArray[np.int32]
    values: Values
    codes: Codes | None = None


Total = DenseSum | SparseSum
OnSqueezed = Callable[[FrameSpec, SparseSum, Weighed], None]


class Summing(ABC):
    """One way of summing, and the kind of contributions that it takes; `state` is what it keeps from step to step."""

    def adopt(self, frames: Sequence[FrameSpec]) -> None:
        """The arena is cut into these frames from now on; nothing may be under way."""
        del frames  # Most ways keep nothing for a frame.

    def state(self) -> dict[str, NDArray[Any]]:
        """Live views, by name, of what later sums depend on; of sizes that follow from the arena and the frames."""
        return {}

    @abstractmethod
    def decode(self, frame: Frame, spec: FrameSpec, shared: Values | None) -> Contribution:
        """Check and decode a worker's frame, which covers the range of `spec`; `shared` are the gradients it shares.

        Raises:
            FrameError: it is not dense or sparse as it should be, shared without shared gradients, has values of
                another type, or places that are not ascending ones within the range.
        """

    @abstractmethod
    def sum(
        self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], scratch: Scratch
    ) -> Total | None:
        """The sum to update the frame's parameters by, times the number of workers; None where the step is skipped.

        Args:
            frame: what is summed.
            step: its number, from 1.
            contributions: of all workers, in rank order.
            scratch: for the sum, which is valid as long as nobody else gets the scratch.

        Raises:
            FrameError: they are of another kind than is summed here, or do not belong together. Nothing was changed.
        """


class DenseSumming(Summing):
    """A value from every worker for every element."""

    @override
    def decode(self, frame: Frame, spec: FrameSpec, shared: Values | None) -> Contribution:
        if frame.header.encoding is not Encoding.SHARED:
            return dense_values(frame)
        if shared is None:
            name = frame.header.sender.label
            raise FrameError(f"frame with shared values: {name} shares no gradients with this server")
        ranges = spec.views(shared)
        return ranges[0] if len(ranges) == 1 else np.concatenate(ranges)

    @override
    def sum(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], scratch: Scratch) -> DenseSum:
        total = scratch.total[: frame.count]
        sum_in_rank_order(_all_of(np.ndarray, contributions, frame, step), total)
        return DenseSum(total)


class HalfSumming(Summing):
    """Values of 16 bits, summed in fp32. A step is skipped if one worker's gradients do not fit."""

    def __init__(self, value_type: ValueType, kind: HalfKind) -> None:
        self._value_type = value_type
        self._kind = kind
        warm_up(kind)

    @override
    def decode(self, frame: Frame, spec: FrameSpec, shared: Values | None) -> Contribution:
        gradients = frame.header.expect(Gradients)
        codes = dense_values(frame, self._value_type)
        return HalfContribution(codes, self._kind, gradients.loss_scale, gradients.skipped)

    @override
    def sum(
        self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], scratch: Scratch
    ) -> DenseSum | None:
        halves = _all_of(HalfContribution, contributions, frame, step)
        scales = {each.loss_scale for each in halves}
        if len(scales) != 1:
            raise FrameError(
                f"group {frame.group} of step {step}: workers scaled their losses by {sorted(scales)}; expected one "
                "scale, train.loss_scale must be the same for all"
            )
        if any(each.skipped for each in halves):
            return None
        total = scratch.total[: frame.count]
        sum_half_in_rank_order([each.codes for each in halves], self._kind, total)
        return DenseSum(total, scales.pop())


class SparseSumming(Summing):
    """Values that the workers selected, at the union of their positions."""

    @override
    def decode(self, frame: Frame, spec: FrameSpec, shared: Values | None) -> Contribution:
        return _decode_sparse(frame, spec)

    @override
    def sum(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], scratch: Scratch) -> SparseSum:
        count = sum_sparse_in_rank_order(
            [(each.indices, each.values) for each in _all_of(SparseContribution, contributions, frame, step)],
            frame.offset,
            scratch.total[: frame.count],
            scratch.marks,
            scratch.indices,
            scratch.values,
        )
        return SparseSum(scratch.indices[:count], scratch.values[:count])


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
    def sum(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], scratch: Scratch) -> SparseSum:
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
    def sum(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], scratch: Scratch) -> SparseSum:
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


def _decode_sparse(frame: Frame, spec: FrameSpec) -> SparseContribution:
    header = frame.header
    if header.encoding is not Encoding.SPARSE:
        kind = header.encoding.name.lower()
        raise FrameError(f"frame of {header.sender.label}: expected a sparse one, got a {kind} one")
    indices = np.empty(header.selected, dtype=np.int32)
    try:
        values = selected_values(frame, indices, spec.shard_bounds)
    except ValueError as error:
        raise FrameError(f"frame of {header.sender.label}, group {spec.group}: {error}") from None
    return SparseContribution(indices, values)


def _all_of(kind: type[Kind], contributions: Sequence[Contribution], frame: FrameSpec, step: int) -> list[Kind]:
    expected = [each for each in contributions if isinstance(each, kind)]
    if len(expected) != len(contributions):
        strange = next(rank for rank, each in enumerate(contributions) if not isinstance(each, kind))
        raise FrameError(
            f"group {frame.group} of step {step}: worker {strange} pushed a {type(contributions[strange]).__name__}, "
            f"expected a {kind.__name__} of every worker"
        )
    return expected


def make_summing(job: Job, parameters: Values, on_squeezed: OnSqueezed | None = None) -> Summing:
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
