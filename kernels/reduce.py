"""Sums of contributions in rank order, and the check that values are finite.

Inputs may begin at any byte: a payload that is a view into a received message has no alignment of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel

# A packed record makes numba emit loads that assume no alignment, and makes one machine code serve every input:
# aligned or not. On x86 these loads are as fast as aligned ones.
_PACKED = np.dtype([("value", np.float32)])


def sum_in_rank_order(frames: Sequence[NDArray[np.float32]], out: NDArray[np.float32]) -> None:
    """Set `out[i]` to `((frames[0][i] + frames[1][i]) + frames[2][i]) + ...`, every sum rounded to fp32.

    The mean is not taken here: the kernels of `taihu.kernels.optim` divide by the number of frames in their own pass.
    The caller's threads run in parallel (the GIL is released), and nothing is allocated.

    Args:
        frames: one contribution of shape (n,), fp32, for each rank, in rank order; of any alignment.
        out: shape (n,), fp32, writable; shares no memory with `frames`.

    Raises:
        ValueError: there is no frame, or a frame is not fp32 of the shape of `out`. `out` is unchanged.
    """
    if not frames or any(frame.shape != out.shape or frame.dtype != np.float32 for frame in frames):
        seen = ", ".join(f"{frame.dtype}{list(frame.shape)}" for frame in frames) or "none"
        raise ValueError(f"frames to sum: {seen}; expected at least one, each float32{list(out.shape)}")
    if len(frames) == 1:
        np.copyto(out, frames[0])
        return
    _add(packed(frames[0]), packed(frames[1]), out)
    for frame in frames[2:]:
        _accumulate(packed(frame), out)


def all_finite(values: NDArray[np.float32]) -> bool:
    """Whether no value of `values` (shape (n,), fp32, of any alignment) is infinite or NaN."""
    return bool(_all_finite(packed(values)))


def warm_up() -> None:
    """Compile these kernels, or load them from the disk cache, so that the first real call does not wait."""
    values = np.zeros(1, dtype=np.float32)
    sum_in_rank_order([values] * 3, np.empty_like(values))
    all_finite(values)


def packed(values: NDArray[np.float32]) -> NDArray[Any]:
    """A read-only view of `values` as packed records: one type, whatever the input's flags are."""
    view = values.view(_PACKED)
    view.flags.writeable = False
    return view


@kernel
def _add(left: NDArray[Any], right: NDArray[Any], out: NDArray[np.float32]) -> None:
    for i in range(len(out)):
        out[i] = left[i].value + right[i].value


# Not `_add(out, frame, out)`: vectorised code needs the guarantee that input and output are distinct.
@kernel
def _accumulate(frame: NDArray[Any], out: NDArray[np.float32]) -> None:
    for i in range(len(out)):
        out[i] += frame[i].value


@kernel
def _all_finite(values: NDArray[Any]) -> bool:
    finite = True
    # An early exit would keep the loop from being vectorised, and nearly all frames are finite.
    for i in range(len(values)):
        finite &= np.isfinite(values[i].value)
    return finite
