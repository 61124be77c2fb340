"""Contributions of workers to one frame, the memory that they lie in, and their sum: what parameters are updated by.

Sums are in rank order, so that they do not depend on which contribution came first. Frames are disjoint, so different
ones may be summed at the same time from different threads, each in a scratch of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import override

from taihu.core.base.errors import FrameError
from taihu.core.planner.partition import FrameSpec
from taihu.core.system.threads import Lock
from taihu.core.wire.frames.headers import Frame, ValueType, dense_values, selected_values
from taihu.core.wire.frames.kinds import Encoding, Gradients
from taihu.kernels.base.half import HalfKind, from_half
from taihu.kernels.half_sums import all_finite_half, sum_half_in_rank_order, warm_up
from taihu.kernels.packing import packed_bound
from taihu.kernels.packing.few_bits import STEP_BYTES
from taihu.kernels.reduce import all_finite, sum_in_rank_order
from taihu.kernels.selection.scatter import make_marks, sum_sparse_in_rank_order

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
Kind = TypeVar("Kind", NDArray[np.float32], HalfContribution, SparseContribution)


def count_non_finite(contribution: Contribution) -> int:
    """The number of infinite or NaN values; none of a step that is skipped because they do not fit."""
    if isinstance(contribution, HalfContribution):
        if contribution.skipped or all_finite_half(contribution.codes, contribution.kind):
            return 0
        values = np.empty(len(contribution.codes), dtype=np.float32)
        from_half(contribution.codes, contribution.kind, values)
    else:
        values = contribution.values if isinstance(contribution, SparseContribution) else contribution
        if all_finite(values):
            return 0
    return int(np.count_nonzero(~np.isfinite(values)))


class FrameBuffers:
    """Arrays that are lent and given back; one that is never given back is freed when nobody refers to it.

    Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: dict[tuple[int, np.dtype[Any]], list[NDArray[Any]]] = defaultdict(list)
        self._lent: WeakValueDictionary[int, NDArray[Any]] = WeakValueDictionary()

    def lend(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """An array of shape (count,) with any values."""
        kind = (count, np.dtype(dtype))
        with self._lock:
            array = self._free[kind].pop() if self._free[kind] else np.empty(count, dtype=kind[1])
            self._lent[id(array)] = array
        return array

    def give_back(self, contributions: Iterable[Contribution]) -> None:
        """Lent arrays, or views of them, will not be used any more; of anything else nothing happens."""
        with self._lock:
            for each in contributions:
                values = each.codes if isinstance(each, HalfContribution) else each
                owner = values.base if isinstance(values, np.ndarray) and values.base is not None else values
                if isinstance(owner, np.ndarray) and self._lent.pop(id(owner), None) is owner:
                    self._free[len(owner), owner.dtype].append(owner)

    def free_all(self) -> None:
        """Keep nothing that is not lent: frames have other sizes from now on."""
        with self._lock:
            self._free.clear()


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


class Summing(ABC, Generic[Kind]):
    """One way of summing, and the kind of contributions that it takes; `state` is what it keeps from step to step."""

    def adopt(self, frames: Sequence[FrameSpec]) -> None:
        """The arena is cut into these frames from now on; nothing may be under way."""
        del frames  # Most ways keep nothing for a frame.

    def state(self) -> dict[str, NDArray[Any]]:
        """Live views, by name, of what later sums depend on; of sizes that follow from the arena and the frames."""
        return {}

    @abstractmethod
    def decode(self, frame: Frame, spec: FrameSpec, shared: Values | None) -> Kind:
        """Check and decode a worker's frame, which covers the range of `spec`; `shared` are the gradients it shares.

        Raises:
            FrameError: it is not dense or sparse as it should be, shared without shared gradients, has values of
                another type, or places that are not ascending ones within the range.
        """

    @abstractmethod
    def sum(self, frame: FrameSpec, step: int, contributions: Sequence[Kind], scratch: Scratch) -> Total | None:
        """The sum to update the frame's parameters by, times the number of workers; None where the step is skipped.

        Args:
            frame: what is summed.
            step: its number, from 1.
            contributions: of all workers, in rank order, as `decode` made them.
            scratch: for the sum, which is valid as long as nobody else gets the scratch.

        Raises:
            FrameError: they do not belong together. Nothing was changed.
        """


class DenseSumming(Summing[NDArray[np.float32]]):
    """A value from every worker for every element."""

    @override
    def decode(self, frame: Frame, spec: FrameSpec, shared: Values | None) -> Values:
        if frame.header.encoding is not Encoding.SHARED:
            return dense_values(frame)
        if shared is None:
            name = frame.header.sender.label
            raise FrameError(f"frame with shared values: {name} shares no gradients with this server")
        ranges = spec.views(shared)
        return ranges[0] if len(ranges) == 1 else np.concatenate(ranges)

    @override
    def sum(self, frame: FrameSpec, step: int, contributions: Sequence[Values], scratch: Scratch) -> DenseSum:
        total = scratch.total[: frame.count]
        sum_in_rank_order(contributions, total)
        return DenseSum(total)


class HalfSumming(Summing[HalfContribution]):
    """Values of 16 bits, summed in fp32. A step is skipped if one worker's gradients do not fit."""

    def __init__(self, value_type: ValueType, kind: HalfKind) -> None:
        self._value_type = value_type
        self._kind = kind
        warm_up(kind)

    @override
    def decode(self, frame: Frame, spec: FrameSpec, shared: Values | None) -> HalfContribution:
        gradients = frame.header.expect(Gradients)
        codes = dense_values(frame, self._value_type)
        return HalfContribution(codes, self._kind, gradients.loss_scale, gradients.skipped)

    @override
    def sum(
        self, frame: FrameSpec, step: int, contributions: Sequence[HalfContribution], scratch: Scratch
    ) -> DenseSum | None:
        scales = {each.loss_scale for each in contributions}
        if len(scales) != 1:
            raise FrameError(
                f"group {frame.group} of step {step}: workers scaled their losses by {sorted(scales)}; expected one "
                "scale, train.loss_scale must be the same for all"
            )
        if any(each.skipped for each in contributions):
            return None
        total = scratch.total[: frame.count]
        sum_half_in_rank_order([each.codes for each in contributions], self._kind, total)
        return DenseSum(total, scales.pop())


class SparseSumming(Summing[SparseContribution]):
    """Values that the workers selected, at the union of their positions."""

    @override
    def decode(self, frame: Frame, spec: FrameSpec, shared: Values | None) -> SparseContribution:
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

    @override
    def sum(
        self, frame: FrameSpec, step: int, contributions: Sequence[SparseContribution], scratch: Scratch
    ) -> SparseSum:
        count = sum_sparse_in_rank_order(
            [(each.indices, each.values) for each in contributions],
            frame.offset,
            scratch.total[: frame.count],
            scratch.marks,
            scratch.indices,
            scratch.values,
        )
        return SparseSum(scratch.indices[:count], scratch.values[:count])
