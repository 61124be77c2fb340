"""Direct convolution of NHWC images, and the gradient of its input, as tiles of sums in registers.

A convolution is the sum over the lines of a window of matrix products: a line of `size` pixels with all their
channels is contiguous in NHWC. The gradient of the input is made of such convolutions of the gradient, one for each
phase of the stride (`phases_of`), with the mirrored weight (`pack_mirrored_weight`).

Every output is one chain of products in the order of the weight: it does not depend on how the work is divided among
threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.nn.blocks import BlockPart, Blocks, Result, Source, padded_part, part_of
from taihu.kernels.nn.filters import TILE_ROWS, tile_width
from taihu.kernels.nn.register_tile import window_tile
from taihu.kernels.nn.vectors import VECTOR_BYTES

_wide_tile = window_tile(TILE_ROWS, 2)
_narrow_tile = window_tile(TILE_ROWS, 1)


@kernel
def convolve(  # noqa: PLR0917 - arrays, what they mean, and the part of the work
    x: NDArray[Any],
    source: Source,
    offsets: NDArray[np.int64],
    weight: NDArray[Any],
    start: NDArray[Any],
    y: NDArray[Any],
    result: Result,
    blocks: Blocks,
    scratch: NDArray[Any],
    first: int,
    last: int,
    lane: int,
) -> None:
    """Convolve blocks `first` to `last` - 1.

    Args:
        x: images, (B, H, W, all channels), C-contiguous.
        source: how they are read.
        offsets: see `window_offsets`.
        weight: see `pack_weight`.
        start: (count of filters, rounded up to whole vectors): where sums begin.
        y: written, one-dimensional and C-contiguous.
        result: the places of `y` that are written.
        blocks: how the images are cut.
        scratch: (lanes, a tile of TILE_ROWS rows and two vectors, and a padded block unless it is plain).
        first: the first block.
        last: behind the last one.
        lane: which part of `scratch` may be used.
    """
    lanes = VECTOR_BYTES // x.itemsize
    spare, room = scratch[lane, : TILE_ROWS * 2 * lanes], scratch[lane, TILE_ROWS * 2 * lanes :]
    for block in range(first, last):
        part = part_of(x, source, blocks, block)
        padded = padded_part(x, source, blocks, part, room)
        _convolve_part(x, source, padded, offsets, weight, start, y, result, blocks, part, spare)


@kernel_part
def _convolve_part(  # noqa: PLR0917 - arrays, what they mean, and where the block lies
    x: NDArray[Any],
    source: Source,
    padded: NDArray[Any],
    offsets: NDArray[np.int64],
    weight: NDArray[Any],
    start: NDArray[Any],
    y: NDArray[Any],
    result: Result,
    blocks: Blocks,
    part: BlockPart,
    spare: NDArray[Any],
) -> None:
    """Convolve one block, whose windows lie in `padded`."""
    lanes = VECTOR_BYTES // x.itemsize
    inner, line_stride = source.size * source.channels, source.padded_width * source.channels
    depth = source.lines * inner
    begin = result.first + part.begin * result.image + part.top * result.row
    # Results of a block that follow one another, from one row and image to the next.
    chained = result.row == source.columns * result.column and result.image == source.rows * result.row
    for f in range(0, result.number, 2 * lanes):
        width = tile_width(result.number - f, lanes)
        inside = min(width, result.number - f)
        tile_start = start[f : f + width]
        # Tiles: the rows of a tile lie `step` elements apart in y, and `series` have so many rows in all.
        if blocks.together:
            many, series, step = source.rows * source.columns, part.images, result.image
        else:
            many, series, step = 1, part.images * part.rows * source.columns, result.column
        for position in range(many):
            low, high, left, right = 0, source.lines, 0, source.size
            first = begin + f
            if blocks.together:
                # Not a function of its own: its call for every tile would cost 3 % where channels are few.
                row, column = position // source.columns, position % source.columns
                low, high = _inside(source.above - row * source.stride, x.shape[1], source.lines)
                left, right = _inside(source.before - column * source.stride, x.shape[2], source.size)
                first += row * result.row + column * result.column
            shift = low * line_stride + left * source.channels
            first_weight = f * depth + (low * inner + left * source.channels) * width
            for p in range(0, series, TILE_ROWS):
                whole = inside == width and p + TILE_ROWS <= series and (chained or blocks.together)
                target, target_first, target_stride = y, first + p * step, step
                if not whole:
                    target, target_first, target_stride = spare, 0, width
                tile = (
                    padded, offsets, position * blocks.images + p, shift, high - low, line_stride,
                    (right - left) * source.channels, weight, first_weight, inner * width, tile_start,
                    target, target_first, target_stride,
                )  # fmt: skip
                if width == lanes:
                    _narrow_tile(*tile)
                else:
                    _wide_tile(*tile)
                if not whole:
                    rows = 0 if blocks.together else part.rows
                    _spread(spare, width, inside, p, min(TILE_ROWS, series - p), source, result, rows, y[first:])


@kernel_part
def _spread(  # noqa: PLR0917 - arrays, what they mean, and which results they are
    spare: NDArray[Any],
    width: int,
    inside: int,
    p: int,
    count: int,
    source: Source,
    result: Result,
    rows: int,
    y: NDArray[Any],
) -> None:
    """Copy a tile of results `p` to `p` + `count` - 1 of a block to their places.

    They are counted by image, row and column, where there are `rows` rows of an image; or by image, where it is 0.
    """
    for r in range(count):
        place = (p + r) * result.image
        if rows:
            row, column = (p + r) // source.columns, (p + r) % source.columns
            place = row // rows * result.image + row % rows * result.row + column * result.column
        target = y[place : place + inside]
        for i in range(inside):
            target[i] = spare[r * width + i]


@kernel_part
def _inside(begin: int, side: int, lines: int) -> tuple[int, int]:
    """The first of a window's `lines` that lies inside of an image of `side` lines, and the one behind the last.

    The image begins at the line `begin` of the window.
    """
    low = min(max(begin, 0), lines)
    return low, max(min(begin + side, lines), low)
