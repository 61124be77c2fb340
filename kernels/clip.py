"""Clipping of gradients: by the norm of a range, in place, or element by element into another array.

All arrays are contiguous fp32 of shape (n,). The kernels allocate nothing and release the GIL.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.jit import kernel, kernel_reassociating

__all__ = ["clip_norm", "clip_values"]

Values = NDArray[np.float32]


def clip_norm(values: Values, largest: float) -> float:
    """Scale `values` in place to the Euclidean norm `largest` where theirs is larger; returns theirs.

    The norm is summed in fp64. Values that are not finite stay as they are.
    """
    norm = float(np.sqrt(_squared(values)))
    if np.isfinite(norm) and norm > largest:
        _scale(values, np.float32(largest / norm))
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
def _squared(values: Values) -> float:
    total = 0.0
    for i in range(len(values)):
        value = np.float64(values[i])
        total += value * value
    return total


@kernel
def _scale(values: Values, factor: np.float32) -> None:
    for i in range(len(values)):
        values[i] *= factor
