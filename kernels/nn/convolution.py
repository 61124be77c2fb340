"""Direct convolution of NHWC images, and the gradient of its input, as tiles of sums in registers.

A convolution is the sum over the lines of a window of matrix products: a line of `size` pixels with all their
channels is contiguous in NHWC. The gradient of the input is the same convolution of the gradient, with its pixels
spread by the stride (`mirrored_source`), and the mirrored weight (`pack_mirrored_weight`).

Every output is one chain of products in the order of the weight: it does not depend on how the work is divided among
threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.jit import kernel
from kernels.nn.blocks import Blocks, Part, Source, padded_part, part_of
from kernels.nn.filters import TILE_ROWS, Filters, tile_width
from kernels.nn.register_tile import window_tile
from kernels.nn.vectors import VECTOR_BYTES

__all__ = ["convolve"]

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
    filters: Filters,
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
        y: written, one-dimensional and C-contiguous: (B, positions, filters.stride).
        filters: the channels of `y` that are written.
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
        _convolve_part(x, source, padded, offsets, weight, start, y, filters, blocks, part, spare)


@kernel
def _convolve_part(  # noqa: PLR0917 - arrays, what they mean, and where the block lies
    x: NDArray[Any],
    source: Source,
    padded: NDArray[Any],
    offsets: NDArray[np.int64],
    weight: NDArray[Any],
    start: NDArray[Any],
    y: NDArray[Any],
    filters: Filters,
    blocks: Blocks,
    part: Part,
    spare: NDArray[Any],
) -> None:
    """Convolve one block, whose windows lie in `padded`."""
    lanes = VECTOR_BYTES // x.itemsize
    size, channels = source.size, source.channels
    inner, line_stride = size * channels, source.padded_width * channels
    depth, y_image = size * inner, source.rows * source.columns * filters.stride
    for f in range(0, filters.number, 2 * lanes):
        width = tile_width(filters.number - f, lanes)
        inside = min(width, filters.number - f)
        tile_start = start[f : f + width]
        # Tiles: the rows of a tile lie `step` elements apart in y, and `series` have so many rows in all.
        if blocks.together:
            many, series, step = source.rows * source.columns, part.images, y_image
        else:
            many, series, step = 1, part.images * part.rows * source.columns, filters.stride
        for position in range(many):
            low, high, left, right, skip = 0, size, 0, size, 1
            if blocks.together:
                # Not a function of its own: its call for every tile would cost 3 % where channels are few.
                low, high = _inside(position // source.columns, x.shape[1], source)
                # Only every `spread`-th line has pixels of the image.
                skip = source.spread
                low += (source.border - position // source.columns * source.stride - low) % skip
                left, right = _inside(position % source.columns, x.shape[2], source)
            lines = max(-(-(high - low) // skip), 0)
            shift = low * line_stride + left * channels
            first_weight = f * depth + (low * inner + left * channels) * width
            for p in range(0, series, TILE_ROWS):
                place = part.begin * y_image + part.top * source.columns * filters.stride + filters.first + f
                place += position * filters.stride + p * step
                whole = inside == width and p + TILE_ROWS <= series
                target, target_first, target_stride = y, place, step
                if not whole:
                    target, target_first, target_stride = spare, 0, width
                tile = (
                    padded, offsets, position * blocks.images + p, shift, lines, skip * line_stride,
                    (right - left) * channels, weight, first_weight, skip * inner * width, tile_start,
                    target, target_first, target_stride,
                )  # fmt: skip
                if width == lanes:
                    _narrow_tile(*tile)
                else:
                    _wide_tile(*tile)
                if not whole:
                    for row in range(min(TILE_ROWS, series - p)):
                        for i in range(inside):
                            y[place + row * step + i] = spare[row * width + i]


@kernel
def _inside(position: int, side: int, source: Source) -> tuple[int, int]:
    """The first of a window's lines that lies inside of an image of `side` lines, and the one behind the last."""
    begin = source.border - position * source.stride
    low = min(max(begin, 0), source.size)
    return low, max(min(begin + (side - 1) * source.spread + 1, source.size), low)
