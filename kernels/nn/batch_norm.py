"""Batch normalisation over the rows of an (M, C) view of an NHWC activation (Ioffe and Szegedy 2015).

The rows are cut into blocks by shape alone, and sums are of each block: they do not depend on how blocks are divided
among threads. A rectifier behind the normalisation can be taken along; its gradient is known again from x.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.nn.column_tile import (
    affine_tile,
    gradient_moments_tile,
    input_gradient_tile,
    moments_tile,
    rectified_affine_tile,
    rectified_gradient_moments_tile,
    rectified_input_gradient_tile,
    sums_tile,
)
from taihu.kernels.nn.vectors import VECTOR_BYTES

_BLOCK_ELEMENTS: Final = 1 << 14
# Rows that are still in the first-level cache when their next columns are read.
_STRIP_BYTES: Final = 1 << 13


def row_blocks(x: NDArray[Any]) -> int:
    """The number of blocks of the rows of `x` (M, C); a block is a part of the work for all functions here."""
    return -(-len(x) // _block_rows(x.shape[1]))


@kernel
def _block_rows(columns: int) -> int:
    rows: int = max(1, _BLOCK_ELEMENTS // columns)
    return rows


@kernel_part
def _whole_vectors(x: NDArray[Any]) -> int:
    """The columns that make whole vectors."""
    columns: int = x.shape[1]
    return columns - columns % (VECTOR_BYTES // x.itemsize)


@kernel_part
def _strips(shape: tuple[int, ...], itemsize: int, first: int, last: int) -> tuple[int, int, int]:
    """The first row of blocks `first` to `last` - 1 of a matrix (M, C), the one behind them, and rows of a strip."""
    # No generator: numba cannot use one that comes from its cache in a kernel that it compiles.
    length, columns = shape
    rows = _block_rows(columns)
    return first * rows, min(last * rows, length), max(8, _STRIP_BYTES // (itemsize * columns))


@kernel
def channel_moments(x: NDArray[Any], totals: NDArray[np.float64], first: int, last: int, lane: int) -> None:
    """Write the sums of x and of x^2 of every column of `x` (M, C), in float64, of blocks `first` to `last` - 1.

    Args:
        x: (M, C), C-contiguous.
        totals: written, (blocks, 2, C).
        first: the first block.
        last: behind the last one.
        lane: not used.
    """
    columns, whole = x.shape[1], _whole_vectors(x)
    flat = x.reshape(-1)
    for block in range(first, last):
        sums, squares = totals[block, 0], totals[block, 1]
        sums[:] = 0
        squares[:] = 0
        start, end, strip = _strips(x.shape, x.itemsize, block, block + 1)
        for row in range(start, end, strip):
            rows = min(strip, end - row)
            moments_tile((flat, sums, squares), row, rows, columns)
            for r in range(row, row + rows):
                for c in range(whole, columns):
                    value = np.float64(x[r, c])
                    sums[c] += value
                    squares[c] += value * value


@kernel
def blocked_column_sums(x: NDArray[Any], totals: NDArray[np.float64], first: int, last: int, lane: int) -> None:
    """Like `channel_moments`, the sums of x alone; `totals` is (blocks, 1, C)."""
    columns, whole = x.shape[1], _whole_vectors(x)
    flat = x.reshape(-1)
    for block in range(first, last):
        sums = totals[block, 0]
        sums[:] = 0
        start, end, strip = _strips(x.shape, x.itemsize, block, block + 1)
        for row in range(start, end, strip):
            rows = min(strip, end - row)
            sums_tile((flat, sums), row, rows, columns)
            for r in range(row, row + rows):
                for c in range(whole, columns):
                    sums[c] += np.float64(x[r, c])


@kernel
def fold(totals: NDArray[np.float64]) -> None:
    """Add the sums of all blocks, in order, to those of the first one; `totals` is (blocks, kinds, C)."""
    for block in range(1, totals.shape[0]):
        for kind in range(totals.shape[1]):
            for c in range(totals.shape[2]):
                totals[0, kind, c] += totals[block, kind, c]


@kernel
def scale_and_shift(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any], affine: NDArray[Any], y: NDArray[Any], rectify: bool, first: int, last: int, lane: int
) -> None:
    """Write y = x * affine[0] + affine[1], or max(y, 0), for the rows of blocks `first` to `last` - 1.

    Args:
        x: (M, C), C-contiguous.
        affine: (2, C).
        y: written, like `x`; may be `x`.
        rectify: whether to.
        first: the first block.
        last: behind the last one.
        lane: not used.
    """
    columns, whole = x.shape[1], _whole_vectors(x)
    scale, shift = affine[0], affine[1]
    arrays = (x.reshape(-1), y.reshape(-1), scale, shift)
    zero = x.dtype.type(0)
    start, end, strip = _strips(x.shape, x.itemsize, first, last)
    for row in range(start, end, strip):
        rows = min(strip, end - row)
        if rectify:
            rectified_affine_tile(arrays, row, rows, columns)
        else:
            affine_tile(arrays, row, rows, columns)
        for r in range(row, row + rows):
            for c in range(whole, columns):
                value = x[r, c] * scale[c] + shift[c]
                y[r, c] = zero if rectify and value < zero else value


@kernel
def gradient_moments(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any],
    dy: NDArray[Any],
    mean: NDArray[Any],
    affine: NDArray[Any],
    totals: NDArray[np.float64],
    rectify: bool,
    first: int,
    last: int,
    lane: int,
) -> None:
    """Write the column sums of dy and of dy * (x - mean) of blocks `first` to `last` - 1, in float64.

    Args:
        x: (M, C), C-contiguous.
        dy: like `x`; where the output was rectified to zero, it counts as zero.
        mean: (C,).
        affine: see `scale_and_shift`.
        totals: written, (blocks, 2, C).
        rectify: whether the output was.
        first: the first block.
        last: behind the last one.
        lane: not used.
    """
    columns, whole = x.shape[1], _whole_vectors(x)
    scale, shift = affine[0], affine[1]
    flat, dy_flat = x.reshape(-1), dy.reshape(-1)
    zero = x.dtype.type(0)
    for block in range(first, last):
        sums, products = totals[block, 0], totals[block, 1]
        sums[:] = 0
        products[:] = 0
        arrays = (flat, dy_flat, mean, scale, shift, sums, products)
        start, end, strip = _strips(x.shape, x.itemsize, block, block + 1)
        for row in range(start, end, strip):
            rows = min(strip, end - row)
            if rectify:
                rectified_gradient_moments_tile(arrays, row, rows, columns)
            else:
                gradient_moments_tile(arrays, row, rows, columns)
            for r in range(row, row + rows):
                for c in range(whole, columns):
                    cut = rectify and x[r, c] * scale[c] + shift[c] <= zero
                    value = np.float64(zero if cut else dy[r, c])
                    sums[c] += value
                    products[c] += value * np.float64(x[r, c] - mean[c])


@kernel
def normalize_gradient(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any],
    dy: NDArray[Any],
    factors: NDArray[Any],
    affine: NDArray[Any],
    dx: NDArray[Any],
    rectify: bool,
    first: int,
    last: int,
    lane: int,
) -> None:
    """Write dx = dy * factors[0] + x * factors[1] + factors[2] for the rows of blocks `first` to `last` - 1.

    Args:
        x: (M, C), C-contiguous.
        dy: like `x`; where the output was rectified to zero, it counts as zero.
        factors: (3, C).
        affine: see `scale_and_shift`.
        dx: written, like `x`; may be `dy`.
        rectify: whether the output was.
        first: the first block.
        last: behind the last one.
        lane: not used.
    """
    columns, whole = x.shape[1], _whole_vectors(x)
    scale, shift, dy_factor, x_factor, constant = affine[0], affine[1], factors[0], factors[1], factors[2]
    arrays = (x.reshape(-1), dy.reshape(-1), dx.reshape(-1), dy_factor, x_factor, constant, scale, shift)
    zero = x.dtype.type(0)
    start, end, strip = _strips(x.shape, x.itemsize, first, last)
    for row in range(start, end, strip):
        rows = min(strip, end - row)
        if rectify:
            rectified_input_gradient_tile(arrays, row, rows, columns)
        else:
            input_gradient_tile(arrays, row, rows, columns)
        for r in range(row, row + rows):
            for c in range(whole, columns):
                value = x[r, c]
                cut = rectify and value * scale[c] + shift[c] <= zero
                gradient = zero if cut else dy[r, c]
                dx[r, c] = gradient * dy_factor[c] + (value * x_factor[c] + constant[c])
