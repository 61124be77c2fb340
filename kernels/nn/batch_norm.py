"""Batch normalisation over the rows of an (M, C) view of an NHWC activation (Ioffe and Szegedy 2015)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.jit import kernel

__all__ = ["channel_moments", "gradient_moments", "normalize_gradient", "scale_and_shift"]


@kernel
def channel_moments(x: NDArray[Any], sums: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
    """Write the sums of x and of x^2 of every column of `x` (M, C), from the first row to the last, in float64."""
    sums[:] = 0
    squares[:] = 0
    for row in range(x.shape[0]):
        line = x[row]
        for c in range(sums.size):
            value = np.float64(line[c])
            sums[c] += value
            squares[c] += value * value


@kernel
def scale_and_shift(x: NDArray[Any], scale: NDArray[Any], shift: NDArray[Any], y: NDArray[Any]) -> None:
    """Write y = x * scale + shift for every row of `x` (M, C); `scale` and `shift` are (C,), `y` is like `x`."""
    for row in range(x.shape[0]):
        source = x[row]
        target = y[row]
        for c in range(scale.size):
            target[c] = source[c] * scale[c] + shift[c]


@kernel
def gradient_moments(
    x: NDArray[Any],
    dy: NDArray[Any],
    mean: NDArray[Any],
    sums: NDArray[np.float64],
    products: NDArray[np.float64],
) -> None:
    """Write the column sums of dy and of dy * (x - mean), in row order in float64; `x`, `dy` are (M, C)."""
    sums[:] = 0
    products[:] = 0
    for row in range(x.shape[0]):
        line = x[row]
        gradient = dy[row]
        for c in range(sums.size):
            value = np.float64(gradient[c])
            sums[c] += value
            products[c] += value * np.float64(line[c] - mean[c])


@kernel
def normalize_gradient(x: NDArray[Any], dy: NDArray[Any], factors: NDArray[Any], dx: NDArray[Any]) -> None:
    """Write dx = dy * factors[0] + x * factors[1] + factors[2] for every row.

    Args:
        x: (M, C), C-contiguous.
        dy: like `x`.
        factors: (3, C).
        dx: written, like `x`.
    """
    dy_factor = factors[0]
    x_factor = factors[1]
    constant = factors[2]
    for row in range(x.shape[0]):
        line = x[row]
        gradient = dy[row]
        target = dx[row]
        for c in range(constant.size):
            target[c] = gradient[c] * dy_factor[c] + line[c] * x_factor[c] + constant[c]
