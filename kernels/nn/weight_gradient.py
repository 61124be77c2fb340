"""The gradient of a convolution's weight, as tiles of sums in registers.

Every weight's gradient is one sum of chains over blocks of pixels that the shapes alone decide: it does not depend on
how the work is divided among threads.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kernels.jit import kernel
from kernels.nn.blocks import Blocks, Part, Source, padded_part, part_of
from kernels.nn.filters import TILE_ROWS, Filters, tile_width
from kernels.nn.register_tile import gradient_tile
from kernels.nn.vectors import VECTOR_BYTES

__all__ = ["weight_gradient"]

# Elements between the rows of a gradient that do not yet compete for the same places of the first-level cache.
_CLOSE_ROWS: Final = 64
_wide_tile = gradient_tile(TILE_ROWS, 2)
_narrow_tile = gradient_tile(TILE_ROWS, 1)


@kernel
def weight_gradient(  # noqa: PLR0917 - arrays, what they mean, and the part of the work
    x: NDArray[Any],
    source: Source,
    offsets: NDArray[np.int64],
    dy: NDArray[Any],
    filters: Filters,
    dw: NDArray[Any],
    row_stride: int,
    blocks: Blocks,
    scratch: NDArray[Any],
    first: int,
    last: int,
    lane: int,
) -> None:
    """The gradient of tiles `first` to `last` - 1 of the rows of a weight, over all images.

    Args:
        x: the images of the forward convolution, (B, H, W, all channels), C-contiguous.
        source: how they are read.
        offsets: see `window_offsets`.
        dy: gradient of the result, one-dimensional and C-contiguous: (B, positions, filters.stride).
        filters: the channels of `dy` that belong to the weight.
        dw: written, one-dimensional: (size, size * channels rounded up to whole tiles of TILE_ROWS, row_stride), of
            which the first columns are written, as many as there are filters, rounded up to whole vectors.
        row_stride: see `dw`.
        blocks: how the images are cut; plain only where a row of the weight has whole tiles.
        scratch: (lanes, a block's gradient with filters rounded up to whole vectors, and the padded block and
            TILE_ROWS elements unless it is plain).
        first: the first tile.
        last: behind the last one.
        lane: which part of `scratch` may be used.
    """
    lanes = VECTOR_BYTES // x.itemsize
    columns = -(-filters.number // lanes) * lanes
    gradient = blocks.images * blocks.rows * source.columns * columns
    panels, room = scratch[lane, :gradient], scratch[lane, gradient:]
    # Whole vectors whose rows lie close together are read where they are.
    as_it_is = blocks.images == 1 and columns == filters.number and filters.stride <= _CLOSE_ROWS
    for row in range(first * TILE_ROWS, last * TILE_ROWS):
        dw[row * row_stride : row * row_stride + columns] = 0
    for block in range(-(-x.shape[0] // blocks.images) * -(-source.rows // blocks.rows)):
        part = part_of(x, source, blocks, block)
        padded = padded_part(x, source, blocks, part, room)
        if part.images < blocks.images:
            # Images that there are not count for nothing.
            lines = (part.rows - 1) * source.stride + source.size
            padded[part.images * lines * source.padded_width * source.channels :] = 0
            panels[:] = 0
        first_dy = dy[(part.begin * source.rows + part.top) * source.columns * filters.stride :]
        if as_it_is:
            panels = first_dy[filters.first :]
        else:
            _panels(first_dy, filters, part.images, blocks.images, part.rows * source.columns, panels)
        _add_part(x, source, padded, offsets, panels, as_it_is, filters, dw, row_stride, blocks, part, first, last)


@kernel
def _add_part(  # noqa: PLR0917 - arrays, what they mean, and the part of the work
    x: NDArray[Any],
    source: Source,
    padded: NDArray[Any],
    offsets: NDArray[np.int64],
    panels: NDArray[Any],
    as_it_is: bool,
    filters: Filters,
    dw: NDArray[Any],
    row_stride: int,
    blocks: Blocks,
    part: Part,
    first: int,
    last: int,
) -> None:
    """Add the products of one block, whose windows lie in `padded`, to tiles `first` to `last` - 1 of the weight."""
    lanes = VECTOR_BYTES // x.itemsize
    size, channels = source.size, source.channels
    line_stride, tiles_of_line = source.padded_width * channels, -(-size * channels // TILE_ROWS)
    pixels = blocks.images * part.rows * source.columns
    for f in range(0, filters.number, 2 * lanes):
        width = tile_width(filters.number - f, lanes)
        panel, step = (f, filters.stride) if as_it_is else (f * pixels, width)
        for tile in range(first, last):
            line = tile // tiles_of_line
            first_inner = (tile - line * tiles_of_line) * TILE_ROWS
            low, high = _reached(line, line, x.shape[1], source.rows, source)
            low, high = max(low, part.top), min(high, part.top + part.rows)
            last_tap = min((first_inner + TILE_ROWS - 1) // channels, size - 1)
            left, right = _reached(first_inner // channels, last_tap, x.shape[2], source.columns, source)
            if low >= high or left >= right:
                continue
            products = (
                padded, offsets, ((low - part.top) * source.columns + left) * blocks.images, high - low,
                source.columns * blocks.images, (right - left) * blocks.images, line * line_stride + first_inner,
                panels, panel, step, dw, tile * TILE_ROWS * row_stride + f, row_stride,
            )  # fmt: skip
            if width == lanes:
                _narrow_tile(*products)
            else:
                _wide_tile(*products)


@kernel
def _reached(first: int, last: int, side: int, results: int, source: Source) -> tuple[int, int]:
    """The first of `results` positions whose window has a line of the image, and the one behind the last.

    Lines `first` to `last` of the window count, the image has `side` lines.
    """
    low = max(-((last - source.border) // source.stride), 0)
    return low, min((side - 1 + source.border - first) // source.stride + 1, results)


@kernel
def _panels(  # noqa: PLR0917 - arrays, what they mean, and their sizes
    dy: NDArray[Any], filters: Filters, count: int, images: int, positions: int, panels: NDArray[Any]
) -> None:
    """Write the gradient of `count` images contiguously for every tile's filters, by position and then image.

    There is room for `images` images; for filters that there are not are zeros.
    """
    lanes = VECTOR_BYTES // dy.itemsize
    for f in range(0, filters.number, 2 * lanes):
        width = tile_width(filters.number - f, lanes)
        inside = min(width, filters.number - f)
        panel = panels[f * images * positions :]
        for image in range(count):
            for position in range(positions):
                begin = (image * positions + position) * filters.stride + filters.first + f
                source = dy[begin : begin + inside]
                first = (position * images + image) * width
                target = panel[first : first + width]
                for i in range(inside):
                    target[i] = source[i]
                for i in range(inside, width):
                    target[i] = 0
