"""What one worker pushed for one frame, checked and decoded: all values of its range, or the selected ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.half import from_half
from kernels.pack import unpack
from taihu.errors import FrameError
from taihu.planner.partition import FrameSpec
from taihu.wire.codec import Frame, ValueType, dense_values

__all__ = ["Contribution", "SparseContribution", "decode_contribution"]


@dataclass(frozen=True, slots=True)
class SparseContribution:
    """Values at ascending positions of the server's arena."""

    indices: NDArray[np.int32]
    values: NDArray[np.float32]


Contribution = NDArray[np.float32] | SparseContribution


def decode_contribution(
    frame: Frame, spec: FrameSpec, *, sparse: bool, shared: NDArray[np.float32] | None
) -> Contribution:
    """Check and decode a worker's frame, which covers the range of `spec`; `shared` are the gradients it shares.

    Raises:
        FrameError: a dense frame where a sparse one is expected or the other way round, a shared one without shared
            gradients, or places that are not ascending ones within the range.
    """
    if frame.header.shared and shared is not None and not sparse:
        ranges = spec.views(shared)
        return ranges[0] if len(ranges) == 1 else np.concatenate(ranges)
    if (frame.header.selected is not None) is not sparse:
        kinds = ("sparse", "dense") if sparse else ("dense", "sparse")
        raise FrameError(f"frame of worker {frame.header.sender}: expected a {kinds[0]} one, got a {kinds[1]} one")
    if not sparse:
        return dense_values(frame)
    values = _decoded_values(frame)
    indices = np.empty(len(values), dtype=np.int32)
    try:
        unpack(frame.sections, spec.shard_bounds, len(values), indices)
    except ValueError as error:
        raise FrameError(f"frame of worker {frame.header.sender}, group {spec.group}: {error}") from None
    return SparseContribution(indices, values)


def _decoded_values(frame: Frame) -> NDArray[np.float32]:
    value_type = frame.header.value_type
    if value_type is ValueType.FP32:
        return frame.values
    if value_type.half_kind is None:
        raise FrameError(
            f"frame of worker {frame.header.sender} has {value_type.label} values: expected at most 32 bits"
        )
    decoded = np.empty(len(frame.values), dtype=np.float32)
    from_half(frame.values, value_type.half_kind, decoded)
    return decoded
