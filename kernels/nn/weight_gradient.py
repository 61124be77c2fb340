"""The gradient of a convolution's weight, as tiles of sums in registers.

Every weight's gradient is one sum of chains over blocks of pixels that the shapes alone decide: it does not depend on
how the work is divided among threads.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.nn.blocks import BlockPart, Blocks, Source, padded_part, part_of
from taihu.kernels.nn.filters import TILE_ROWS, Filters, tile_width
from taihu.kernels.nn.register_tile import gradient_tile
from taihu.kernels.nn.vectors import VECTOR_BYTES

# Elements between the rows of a gradient that do not yet compete for the same places of the first-level cache.
_CLOSE_ROWS: Final = 64
# Tiles whose rows, 256 pixels of each, share the second-level cache with a panel of the gradient.
_TILES_TOGETHER: Final = 32
# Keeps the rows of adjacent tiles from competing for the same places of the first-level cache.
_APART: Final = 16
# Vectors of filters that are worth it to pack rows.
_PACKED_FROM: Final = 4
# Channels that keep pixels so far apart that these compete for the same places of the first-level cache.
_FAR_APART: Final = 512
_wide_tile = gradient_tile(TILE_ROWS, 2)
_narrow_tile = gradient_tile(TILE_ROWS, 1)


@kernel
def weight_gradient(  # noqa: PLR0917 - arrays, what they mean, and the part of the work
    x: NDArray[Any],
    source: Source,
    offsets: NDArray[np.int64],
    last_offsets: NDArray[np.int64],
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
        last_offsets: those of the last block, which may have fewer images.
        dy: gradient of the result, one-dimensional and C-contiguous: (B, positions, filters.stride).
        filters: the channels of `dy` that belong to the weight.
        dw: written, one-dimensional: (size, size * channels rounded up to whole tiles of TILE_ROWS, row_stride), of
            which the first columns are written, as many as there are filters, rounded up to whole vectors.
        row_stride: see `dw`.
        blocks: how the images are cut; plain only where a row of the weight has whole tiles.
        scratch: (lanes, a block's gradient with filters rounded up to whole vectors, `packed_elements`, and the
            padded block and TILE_ROWS elements unless it is plain).
        first: the first tile.
        last: behind the last one.
        lane: which part of `scratch` may be used.
    """
    lanes = VECTOR_BYTES // x.itemsize
    columns = -(-filters.number // lanes) * lanes
    gradient = blocks.images * blocks.rows * source.columns * columns
    pixels = blocks.images * blocks.rows * source.columns
    behind = gradient + packed_elements(source, filters.number, x.itemsize, pixels)
    panels, packed, room = scratch[lane, :gradient], scratch[lane, gradient:behind], scratch[lane, behind:]
    # Whole vectors whose rows lie close together are read where they are.
    as_it_is = blocks.images == 1 and columns == filters.number and filters.stride <= _CLOSE_ROWS
    for row in range(first * TILE_ROWS, last * TILE_ROWS):
        dw[row * row_stride : row * row_stride + columns] = 0
    for block in range(-(-x.shape[0] // blocks.images) * -(-source.rows // blocks.rows)):
        part = part_of(x, source, blocks, block)
        padded = padded_part(x, source, blocks, part, room)
        first_dy = dy[(part.begin * source.rows + part.top) * source.columns * filters.stride :]
        if as_it_is:
            panels = first_dy[filters.first :]
        else:
            _panels(first_dy, filters, part.images, part.rows * source.columns, panels)
        places = offsets if part.images == blocks.images else last_offsets
        _add_part(x, source, padded, places, panels, as_it_is, packed, filters, dw, row_stride, part, first, last)


@kernel
def packed_elements(source: Source, filters: int, itemsize: int, pixels: int) -> int:
    """Room for the packed rows of tiles of so many pixels; 0 where rows are read where they are."""
    vectors = filters * itemsize // VECTOR_BYTES
    packs = vectors >= _PACKED_FROM and (source.size == 1 or source.channels >= _FAR_APART)
    tiles = min(_TILES_TOGETHER, -(-source.size * source.channels // TILE_ROWS) * source.lines)
    return tiles * (pixels * TILE_ROWS + _APART) if packs else 0


@kernel_part
def _add_part(  # noqa: PLR0917 - arrays, what they mean, and the part of the work
    x: NDArray[Any],
    source: Source,
    padded: NDArray[Any],
    offsets: NDArray[np.int64],
    panels: NDArray[Any],
    as_it_is: bool,
    packed: NDArray[Any],
    filters: Filters,
    dw: NDArray[Any],
    row_stride: int,
    part: BlockPart,
    first: int,
    last: int,
) -> None:
    """Add the products of one block, whose windows lie in `padded`, to tiles `first` to `last` - 1 of the weight.

    Rows of tiles are read for every two vectors of filters: where these are many, they are packed first.
    """
    lanes = VECTOR_BYTES // x.itemsize
    line_stride, tiles_of_line = source.padded_width * source.channels, -(-source.size * source.channels // TILE_ROWS)
    pixels = part.images * part.rows * source.columns
    tile_room = pixels * TILE_ROWS + _APART
    packs = packed.size > 0
    in_order = np.arange(pixels + TILE_ROWS) * TILE_ROWS
    for begin in range(first, last, _TILES_TOGETHER):
        end = min(begin + _TILES_TOGETHER, last)
        if packs:
            _pack_rows(padded, offsets, pixels, line_stride, tiles_of_line, packed, begin, end)
        for f in range(0, filters.number, 2 * lanes):
            width = tile_width(filters.number - f, lanes)
            panel, step = (f, filters.stride) if as_it_is else (f * pixels, width)
            for tile in range(begin, end):
                line = tile // tiles_of_line
                first_inner = (tile - line * tiles_of_line) * TILE_ROWS
                low, high = _reached(line, line, x.shape[1], source.rows, source.stride, source.above)
                low, high = max(low, part.top), min(high, part.top + part.rows)
                last_tap = min((first_inner + TILE_ROWS - 1) // source.channels, source.size - 1)
                left, right = _reached(
                    first_inner // source.channels, last_tap, x.shape[2], source.columns, source.stride, source.before
                )
                if low >= high or left >= right:
                    continue
                rows, places, shift = padded, offsets, line * line_stride + first_inner
                if packs:
                    rows, places, shift = packed, in_order, (tile - begin) * tile_room
                products = (
                    rows, places, ((low - part.top) * source.columns + left) * part.images, high - low,
                    source.columns * part.images, (right - left) * part.images, shift,
                    panels, panel, step, dw, tile * TILE_ROWS * row_stride + f, row_stride,
                )  # fmt: skip
                if width == lanes:
                    _narrow_tile(*products)
                else:
                    _wide_tile(*products)


@kernel_part
def _pack_rows(  # noqa: PLR0917 - arrays, what they mean, and the part of the work
    padded: NDArray[Any],
    offsets: NDArray[np.int64],
    pixels: int,
    line_stride: int,
    tiles_of_line: int,
    packed: NDArray[Any],
    begin: int,
    end: int,
) -> None:
    """Write the rows of tiles `begin` to `end` - 1 contiguously, TILE_ROWS elements of every pixel."""
    tile_room = pixels * TILE_ROWS + _APART
    tile = begin
    while tile < end:
        line = tile // tiles_of_line
        stop = min(end, (line + 1) * tiles_of_line)
        shift = line * line_stride + (tile - line * tiles_of_line) * TILE_ROWS
        for p in range(pixels):
            first = offsets[p] + shift
            source = padded[first : first + (stop - tile) * TILE_ROWS]
            for t in range(stop - tile):
                place = (tile - begin + t) * tile_room + p * TILE_ROWS
                target, rows = packed[place : place + TILE_ROWS], source[t * TILE_ROWS : (t + 1) * TILE_ROWS]
                for r in range(TILE_ROWS):
                    target[r] = rows[r]
        tile = stop


@kernel_part
def _reached(  # noqa: PLR0917 - numbers of one side
    first: int, last: int, side: int, results: int, stride: int, border: int
) -> tuple[int, int]:
    """The first of `results` positions whose window has a line of the image, and the one behind the last.

    Lines `first` to `last` of the window count, the image has `side` lines behind `border` lines.
    """
    low = max(-((last - border) // stride), 0)
    return low, min((side - 1 + border - first) // stride + 1, results)


@kernel_part
def _panels(dy: NDArray[Any], filters: Filters, images: int, positions: int, panels: NDArray[Any]) -> None:
    """Write the gradient of `images` images contiguously for every tile's filters, by position and then image.

    For filters that there are not are zeros.
    """
    lanes = VECTOR_BYTES // dy.itemsize
    for f in range(0, filters.number, 2 * lanes):
        width = tile_width(filters.number - f, lanes)
        inside = min(width, filters.number - f)
        panel = panels[f * images * positions :]
        for image in range(images):
            for position in range(positions):
                begin = (image * positions + position) * filters.stride + filters.first + f
                source = dy[begin : begin + inside]
                first = (position * images + image) * width
                target = panel[first : first + width]
                for i in range(inside):
                    target[i] = source[i]
                for i in range(inside, width):
                    target[i] = 0
