"""Clipping of gradients: by the norm of a range, in place, element by element into another array; and whole norms.

All arrays are contiguous fp32 of shape (n,). The kernels allocate nothing and release the GIL.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_reassociating

_LANE: Final = 2.0**30
_TOP: Final = 2.0**120

Values = NDArray[np.float32]


def clip_norm(values: Values, largest: float) -> float:
    """Scale `values` in place to the Euclidean norm `largest` where theirs is larger; returns theirs.

    The norm is summed in fp64. Values that are not finite stay as they are.
    """
    norm = float(np.sqrt(squared_norm(values)))
    if np.isfinite(norm) and norm > largest:
        scale(values, np.float32(largest / norm))
    return norm


@kernel
def clip_values(values: Values, scale: float, largest: float, out: Values) -> None:
    """Set `out` to `scale * values`, none of it beyond +-`largest`; what is not a number stays so."""
    factor = np.float32(scale)
    limit = np.float32(largest)
    for i in range(len(values)):
        value = values[i] * factor
        if value > limit:
            value = limit
        elif value < -limit:
            value = -limit
        out[i] = value


@kernel_reassociating
def squared_norm(values: Values) -> float:
    """The sum of the squares of `values`, in fp64."""
    total = 0.0
    for i in range(len(values)):
        value = np.float64(values[i])
        total += value * value
    return total


@kernel
def scale(values: Values, factor: np.float32) -> None:
    """Multiply `values` in place."""
    for i in range(len(values)):
        values[i] *= factor


@kernel
def add_squares(values: Values, unit: float, lanes: NDArray[np.int64]) -> None:
    """Add the squares of `values`, in units of `unit` and rounded to whole ones, to `lanes`.

    The sum is exact, so that it does not depend on the order in which ranges are added, or on how they are cut.

    Args:
        values: summed.
        unit: a power of two.
        lanes: shape (5,), int64; lane k below 4 counts 2^(30 k) units, the last one values whose square is no number
            below 2^120 units. Of up to 2^33 values none overflows.
    """
    per_unit = 1.0 / unit
    for i in range(len(values)):
        value = np.float64(values[i])
        rest = value * value * per_unit
        if not rest < _TOP:
            lanes[4] += 1
            continue
        if rest >= _LANE:
            # From the top, where there is something to take: most squares are small.
            for lane in range(3, 0, -1):
                size = _LANE**lane
                if rest >= size:
                    part = np.floor(rest / size)
                    lanes[lane] += np.int64(part)
                    rest -= part * size
        lanes[0] += np.int64(np.rint(rest))
