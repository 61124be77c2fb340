"""The contribution of one worker to one frame, checked and decoded: all values of its range, or the selected ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.half import HalfKind, from_half
from kernels.half_sums import all_finite_half
from kernels.pack import unpack
from kernels.reduce import all_finite
from taihu.errors import FrameError
from taihu.planner.partition import FrameSpec
from taihu.wire.codec import Frame, dense_values
from taihu.wire.headers import Encoding, Gradients, ValueType

__all__ = [
    "Contribution",
    "HalfContribution",
    "SparseContribution",
    "count_non_finite",
    "decode_contribution",
    "values_of",
]


@dataclass(frozen=True, slots=True)
class SparseContribution:
    """Values at ascending positions of the server's arena."""

    indices: NDArray[np.int32]
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HalfContribution:
    """A 16-bit value for every element, as codes of `kernels.half`, and what they were multiplied by.

    With `skipped` the worker's gradients of this step did not fit.
    """

    codes: NDArray[Any]
    kind: HalfKind
    loss_scale: float
    skipped: bool


Contribution = NDArray[np.float32] | SparseContribution | HalfContribution


def decode_contribution(
    frame: Frame, spec: FrameSpec, *, sparse: bool, shared: NDArray[np.float32] | None, value_type: ValueType
) -> Contribution:
    """Check and decode a worker's frame, which covers the range of `spec`; `shared` are the gradients it shares.

    Dense values are of `value_type`.

    Raises:
        FrameError: a dense frame where a sparse one is expected or the other way round, a shared one without shared
            gradients, values of another type, or places that are not ascending ones within the range.
    """
    header = frame.header
    if sparse:
        return _decode_sparse(frame, spec)
    if header.encoding is Encoding.SHARED and value_type is ValueType.FP32:
        if shared is None:
            raise FrameError(f"frame with shared values: {header.sender.label} shares no gradients with this server")
        ranges = spec.views(shared)
        return ranges[0] if len(ranges) == 1 else np.concatenate(ranges)
    values = dense_values(frame, value_type)
    if value_type.half_kind is None:
        return values
    gradients = header.expect(Gradients)
    return HalfContribution(values, value_type.half_kind, gradients.loss_scale, gradients.skipped)


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


def _decode_sparse(frame: Frame, spec: FrameSpec) -> SparseContribution:
    header = frame.header
    if header.encoding is not Encoding.SPARSE:
        kind = header.encoding.name.lower()
        raise FrameError(f"frame of {header.sender.label}: expected a sparse one, got a {kind} one")
    values = _decoded_values(frame)
    indices = np.empty(len(values), dtype=np.int32)
    try:
        unpack(frame.sections, spec.shard_bounds, len(values), indices)
    except ValueError as error:
        raise FrameError(f"frame of {header.sender.label}, group {spec.group}: {error}") from None
    return SparseContribution(indices, values)


def _decoded_values(frame: Frame) -> NDArray[np.float32]:
    value_type = frame.header.value_type
    if value_type is ValueType.FP32:
        return frame.values
    if value_type.half_kind is None:
        raise FrameError(
            f"frame of {frame.header.sender.label} has {value_type.label} values: expected at most 32 bits"
        )
    decoded = np.empty(len(frame.values), dtype=np.float32)
    from_half(frame.values, value_type.half_kind, decoded)
    return decoded
