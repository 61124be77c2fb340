"""Layer normalisation of the rows of an (M, C) array, each by its own moments (Ba et al. 2016)."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel_reassociating

_BLOCK_ROWS: Final = 64


def norm_blocks(rows: int) -> int:
    """The number of blocks of so many rows; a block is a part of the work for the functions here."""
    return -(-rows // _BLOCK_ROWS)


@kernel_reassociating
def layer_norm(  # noqa: PLR0917 - arrays, a number, and the part of the work
    x: NDArray[Any],
    scale: NDArray[Any],
    shift: NDArray[Any],
    epsilon: float,
    y: NDArray[Any],
    moments: NDArray[Any],
    first: int,
    last: int,
    lane: int,
) -> None:
    """Write y = (x - mean) / sqrt(variance + epsilon) * scale + shift for the rows of blocks `first` to `last` - 1.

    Args:
        x: (M, C), C-contiguous.
        scale: (C,).
        shift: (C,).
        epsilon: added to the variance, which is that of the row's C values.
        y: written, like `x`; may be `x`.
        moments: written, (M, 2): mean, and 1 / sqrt(variance + epsilon).
        first: the first block.
        last: behind the last one.
        lane: not used.
    """
    columns = x.shape[1]
    one = x.dtype.type(1)
    for r in range(first * _BLOCK_ROWS, min(last * _BLOCK_ROWS, len(x))):
        line, target = x[r], y[r]
        total = x.dtype.type(0)
        for c in range(columns):
            total += line[c]
        mean = total * (one / x.dtype.type(columns))
        squares = x.dtype.type(0)
        for c in range(columns):
            difference = line[c] - mean
            squares += difference * difference
        inverse = x.dtype.type(1.0 / math.sqrt(squares / columns + epsilon))
        moments[r, 0] = mean
        moments[r, 1] = inverse
        for c in range(columns):
            target[c] = (line[c] - mean) * inverse * scale[c] + shift[c]


@kernel_reassociating
def layer_norm_gradient(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any],
    dy: NDArray[Any],
    scale: NDArray[Any],
    moments: NDArray[Any],
    dx: NDArray[Any],
    totals: NDArray[np.float64],
    first: int,
    last: int,
    lane: int,
) -> None:
    """Write the gradients of blocks `first` to `last` - 1, with n = (x - mean) / deviation and g = dy * scale.

    Args:
        x: (M, C), C-contiguous.
        dy: like `x`.
        scale: (C,).
        moments: of `layer_norm`.
        dx: written, like `x`: (g - mean(g) - n mean(g n)) / deviation, means over a row; may be `dy`.
        totals: written, (blocks, 2, C): sums of dy n and of dy over each block's rows.
        first: the first block.
        last: behind the last one.
        lane: not used.
    """
    columns = x.shape[1]
    zero = x.dtype.type(0)
    share = x.dtype.type(1.0 / columns)
    for block in range(first, last):
        products, sums = totals[block, 0], totals[block, 1]
        products[:] = 0
        sums[:] = 0
        for r in range(block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, len(x))):
            line, slope, target = x[r], dy[r], dx[r]
            mean, inverse = moments[r, 0], moments[r, 1]
            along, across = zero, zero
            for c in range(columns):
                normal = (line[c] - mean) * inverse
                products[c] += slope[c] * normal
                sums[c] += slope[c]
                weighted = slope[c] * scale[c]
                across += weighted
                along += weighted * normal
            across *= share
            along *= share
            for c in range(columns):
                normal = (line[c] - mean) * inverse
                target[c] = (slope[c] * scale[c] - across - normal * along) * inverse
