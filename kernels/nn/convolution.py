"""Direct convolution of NHWC images, and its gradients, as tiles of sums in registers over a padded copy.

A convolution is the sum over the lines of a window of matrix products: a line of `size` pixels with all their
channels is contiguous in NHWC. Images are copied with their border, a few or a part of one at a time, into memory
that stays in the second-level cache; windows are read there without looking at edges. The gradient of the input is
the same convolution of the gradient, with its pixels spread by the stride, and the mirrored weight.

Every output is one chain of products in the order of the weight, and every weight's gradient one sum of chains over
blocks of pixels that the shapes alone decide: neither depends on how the work is divided among threads.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kernels.jit import kernel
from kernels.nn.register_tile import gradient_tile, window_tile
from kernels.nn.vectors import VECTOR_BYTES
from kernels.nn.window import Window

__all__ = [
    "TILE_ROWS",
    "Blocks",
    "Filters",
    "Source",
    "convolve",
    "mirrored_source",
    "pack_mirrored_weight",
    "pack_weight",
    "padded_filters",
    "source_of",
    "tiles_of",
    "weight_gradient",
    "window_offsets",
]

TILE_ROWS: Final = 8
# Elements between the rows of a gradient that do not yet compete for the same places of the first-level cache.
_CLOSE_ROWS: Final = 64
_wide_window = window_tile(TILE_ROWS, 2)
_narrow_window = window_tile(TILE_ROWS, 1)
_wide_gradient = gradient_tile(TILE_ROWS, 2)
_narrow_gradient = gradient_tile(TILE_ROWS, 1)


class Source(NamedTuple):
    """How windows are read from images; flat, as nested tuples take kernels microseconds to unpack.

    Attributes:
        size: of windows.
        stride: distance of windows in the padded image, whose first pixel has the position 0.
        border: width of the border before the image: negative where the image is cropped instead.
        spread: distance of the image's pixels in the padded image, with zeros between them.
        padded_height: of the padded image.
        padded_width: of the padded image.
        first_channel: of those that are read.
        channels: how many are read.
        rows: windows vertically.
        columns: windows horizontally.
    """

    size: int
    stride: int
    border: int
    spread: int
    padded_height: int
    padded_width: int
    first_channel: int
    channels: int
    rows: int
    columns: int

    @property
    def pixels(self) -> int:
        """Windows of an image."""
        return self.rows * self.columns

    def strip_elements(self, rows: int) -> int:
        """Of the part of a padded image that so many rows of windows lie in."""
        return ((rows - 1) * self.stride + self.size) * self.padded_width * self.channels

    def is_plain(self, images: tuple[int, ...], number: int, rows: int) -> bool:
        """Whether blocks of `number` images and so many rows of windows would be copied as they are.

        Not where the last block is smaller: tiles may read where the larger one would have gone on.

        Args:
            images: the shape (B, H, W, all channels).
            number: of images in a block.
            rows: of windows in a block.
        """
        batch, *image = images
        needed = (self.rows - 1) * self.stride + self.size
        padded = [self.padded_height, self.padded_width, self.channels]
        same = self.spread == 1 and needed == image[0] and padded == image
        return same and batch % number == 0 and self.rows % rows == 0


class Blocks(NamedTuple):
    """What is padded and convolved at a time: so many rows of windows of so many images, all rows or one image.

    Attributes:
        images: how many.
        rows: how many.
        plain: nothing is padded, which `Source.is_plain` allowed.
        together: a tile has the windows of several images at one position, where it has those at adjacent positions
            of one image otherwise. Then products with the border, many where images are small, are left out,
            and those with lines of zeros between spread-out pixels.
    """

    images: int
    rows: int
    plain: bool
    together: bool

    def in_batch(self, batch: int, source: Source) -> int:
        """How many blocks a batch makes."""
        return -(-batch // self.images) * -(-source.rows // self.rows)


class Filters(NamedTuple):
    """A range of the channels of a result: the first one, how many, and how many the result has in all."""

    first: int
    number: int
    stride: int


def source_of(window: Window, image: tuple[int, int], first_channel: int, channels: int) -> Source:
    """The source of a forward convolution of images of (height, width)."""
    size, stride, padding = window
    height, width = (side + 2 * padding for side in image)
    rows, columns = ((side - size) // stride + 1 for side in (height, width))
    return Source(size, stride, padding, 1, height, width, first_channel, channels, rows, columns)


def mirrored_source(window: Window, image: tuple[int, int], first_channel: int, channels: int) -> Source:
    """The source, made of the gradient of its result, of the gradient of a convolution of (height, width) images."""
    size, stride, padding = window
    height, width = (side + size - 1 for side in image)
    return Source(size, 1, size - 1 - padding, stride, height, width, first_channel, channels, *image)


def window_offsets(source: Source, blocks: Blocks) -> NDArray[np.int64]:
    """Where the windows of a block begin, in elements; and TILE_ROWS zeros.

    They are in the order of outputs; those of a block `together` by row, column and image.
    """
    stride, columns = source.stride, source.columns
    image = np.arange(blocks.images)[:, None, None] * source.strip_elements(blocks.rows)
    row = np.arange(blocks.rows)[:, None] * (stride * source.padded_width * source.channels)
    column = np.arange(columns) * (stride * source.channels)
    begin = image + row + column
    if blocks.together:
        begin = begin.transpose(1, 2, 0)
    return np.concatenate((begin.reshape(-1), np.zeros(TILE_ROWS, np.int64)))


def padded_filters(count: int, dtype: DTypeLike) -> int:
    """`count` rounded up to whole vectors."""
    lanes = VECTOR_BYTES // np.dtype(dtype).itemsize
    return -(-count // lanes) * lanes


def tiles_of(count: int, dtype: DTypeLike) -> int:
    """How many tiles so many filters make."""
    return -(-padded_filters(count, dtype) // (2 * padded_filters(1, dtype)))


@kernel
def _width(filters: int, lanes: int) -> int:
    """The width of the next tile when so many filters are left."""
    return lanes if filters <= lanes else 2 * lanes


@kernel
def pack_weight(  # noqa: PLR0917 - the last three are the part of the work
    weight: NDArray[Any], filters: Filters, packed: NDArray[Any], first: int, last: int, lane: int
) -> None:
    """Write tiles `first` to `last` - 1 of a weight, each contiguous with zeros for filters that there are not.

    Args:
        weight: (size * size * channels, filters.stride), C-contiguous.
        filters: those that are packed.
        packed: written, one-dimensional: of every tile of two vectors, or one at the end, a row for each of `weight`.
        first: the first tile.
        last: behind the last tile.
        lane: not used.
    """
    lanes = VECTOR_BYTES // weight.itemsize
    depth = weight.shape[0]
    for tile in range(first, last):
        begin = 2 * lanes * tile
        width = _width(filters.number - begin, lanes)
        inside = min(width, filters.number - begin)
        for k in range(depth):
            source = weight[k, filters.first + begin : filters.first + begin + inside]
            target = packed[begin * depth + k * width : begin * depth + (k + 1) * width]
            for i in range(inside):
                target[i] = source[i]
            for i in range(inside, width):
                target[i] = 0


@kernel
def pack_mirrored_weight(  # noqa: PLR0917 - the last three are the part of the work
    weight: NDArray[Any], filters: Filters, packed: NDArray[Any], first: int, last: int, lane: int
) -> None:
    """Like `pack_weight`, for the gradient of the input: channels are its filters, kernels are turned by 180 degrees.

    Args:
        weight: (size * size, channels, filters.stride), C-contiguous.
        filters: those whose gradient is given.
        packed: see `pack_weight`.
        first: the first tile of channels.
        last: behind the last tile.
        lane: not used.
    """
    lanes = VECTOR_BYTES // weight.itemsize
    taps, channels, _ = weight.shape
    depth = taps * filters.number
    for tile in range(first, last):
        begin = 2 * lanes * tile
        width = _width(channels - begin, lanes)
        inside = min(width, channels - begin)
        panel = packed[begin * depth : (begin + width) * depth].reshape(taps, filters.number, width)
        for tap in range(taps):
            for f in range(0, filters.number, lanes):
                end = min(f + lanes, filters.number)
                for i in range(inside):
                    source = weight[taps - 1 - tap, begin + i]
                    for j in range(f, end):
                        panel[tap, j, i] = source[filters.first + j]
                for i in range(inside, width):
                    for j in range(f, end):
                        panel[tap, j, i] = 0


@kernel
def _pad(x: NDArray[Any], source: Source, top: int, rows: int, padded: NDArray[Any]) -> None:
    """Copy `rows` rows, from row `top` on, of the padded images of `x` into the front of `padded`."""
    border, spread, channels = source.border, source.spread, source.channels
    images, height, width, all_channels = x.shape
    columns = source.padded_width
    # Columns of the padded image from the image's first to behind its last one.
    low = min(max(border, 0), columns)
    high = max(min(border + (width - 1) * spread + 1, columns), low)
    lines = x.reshape(images * height, width * all_channels)
    span = columns * channels
    for image in range(images):
        for row in range(rows):
            start = (image * rows + row) * span
            target = padded[start : start + span]
            ih = (top + row - border) // spread
            if ih < 0 or ih >= height or ih * spread != top + row - border:
                target[:] = 0
                continue
            target[: low * channels] = 0
            target[high * channels :] = 0
            line = lines[image * height + ih]
            if spread == 1 and channels == all_channels:
                inside = target[low * channels : high * channels]
                original = line[(low - border) * channels : (high - border) * channels]
                for i in range(inside.size):
                    inside[i] = original[i]
                continue
            for column in range(low, high):
                pixel = target[column * channels : (column + 1) * channels]
                iw = (column - border) // spread
                if iw * spread != column - border:
                    pixel[:] = 0
                    continue
                begin = iw * all_channels + source.first_channel
                original = line[begin : begin + channels]
                for c in range(channels):
                    pixel[c] = original[c]


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
    stride, size, line_stride = source.stride, source.size, source.padded_width * source.channels
    strips = -(-source.rows // blocks.rows)
    spare, padded = scratch[lane, : TILE_ROWS * 2 * lanes], scratch[lane, TILE_ROWS * 2 * lanes :]
    for block in range(first, last):
        begin, top = block // strips * blocks.images, block % strips * blocks.rows
        count, rows = min(blocks.images, x.shape[0] - begin), min(blocks.rows, source.rows - top)
        if blocks.plain:
            padded = x[begin:].reshape(-1)[top * stride * line_stride :]
        else:
            _pad(x[begin : begin + count], source, top * stride, (rows - 1) * stride + size, padded)
        _convolve_block(x, source, padded, offsets, weight, start, y, filters, blocks, begin, top, count, rows, spare)


@kernel
def _convolve_block(  # noqa: PLR0917 - arrays, what they mean, and where the block lies
    x: NDArray[Any],
    source: Source,
    padded: NDArray[Any],
    offsets: NDArray[np.int64],
    weight: NDArray[Any],
    start: NDArray[Any],
    y: NDArray[Any],
    filters: Filters,
    blocks: Blocks,
    begin: int,
    top: int,
    count: int,
    rows: int,
    spare: NDArray[Any],
) -> None:
    """Convolve `rows` rows from `top` on of `count` images from `begin` on, whose windows lie in `padded`."""
    lanes = VECTOR_BYTES // x.itemsize
    size, channels = source.size, source.channels
    inner, line_stride = size * channels, source.padded_width * channels
    depth, y_image = size * inner, source.rows * source.columns * filters.stride
    for f in range(0, filters.number, 2 * lanes):
        width = _width(filters.number - f, lanes)
        inside = min(width, filters.number - f)
        tile_start = start[f : f + width]
        # Tiles: the rows of a tile lie `step` elements apart in y, and `series` have so many rows in all.
        if blocks.together:
            many, series, step = source.rows * source.columns, count, y_image
        else:
            many, series, step = 1, count * rows * source.columns, filters.stride
        for position in range(many):
            low, high, left, right, skip = 0, size, 0, size, 1
            if blocks.together:
                low, high = _inside(position // source.columns, x.shape[1], source)
                # Only every `spread`-th line has pixels of the image.
                skip = source.spread
                low += (source.border - position // source.columns * source.stride - low) % skip
                left, right = _inside(position % source.columns, x.shape[2], source)
            lines = max(-(-(high - low) // skip), 0)
            shift = low * line_stride + left * channels
            first_weight = f * depth + (low * inner + left * channels) * width
            for p in range(0, series, TILE_ROWS):
                place = begin * y_image + top * source.columns * filters.stride + filters.first + f
                place += position * filters.stride + p * step
                whole = inside == width and p + TILE_ROWS <= series
                target, target_first, target_stride = y, place, step
                if not whole:
                    target, target_first, target_stride = spare, 0, width
                pixel = position * blocks.images + p
                if width == lanes:
                    _narrow_window(
                        padded, offsets, pixel, shift, lines, skip * line_stride, (right - left) * channels, weight,
                        first_weight, skip * inner * width, tile_start, target, target_first, target_stride,
                    )  # fmt: skip
                else:
                    _wide_window(
                        padded, offsets, pixel, shift, lines, skip * line_stride, (right - left) * channels, weight,
                        first_weight, skip * inner * width, tile_start, target, target_first, target_stride,
                    )  # fmt: skip
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
    stride, size, channels = source.stride, source.size, source.channels
    inner, line_stride = size * channels, source.padded_width * channels
    tiles_of_line = -(-inner // TILE_ROWS)
    columns = -(-filters.number // lanes) * lanes
    strips = -(-source.rows // blocks.rows)
    room = blocks.images * blocks.rows * source.columns * columns
    panels, padded = scratch[lane, :room], scratch[lane, room:]
    # Whole vectors whose rows lie close together are read where they are.
    as_it_is = blocks.images == 1 and columns == filters.number and filters.stride <= _CLOSE_ROWS
    for row in range(first * TILE_ROWS, last * TILE_ROWS):
        dw[row * row_stride : row * row_stride + columns] = 0
    for block in range(-(-x.shape[0] // blocks.images) * strips):
        begin, top = block // strips * blocks.images, block % strips * blocks.rows
        count, rows = min(blocks.images, x.shape[0] - begin), min(blocks.rows, source.rows - top)
        if blocks.plain:
            padded = x[begin:].reshape(-1)[top * stride * line_stride :]
        else:
            _pad(x[begin : begin + count], source, top * stride, (rows - 1) * stride + size, padded)
        if count < blocks.images:
            # Images that there are not count for nothing.
            padded[count * source.padded_width * channels * ((rows - 1) * stride + size) :] = 0
            panels[:] = 0
        pixels = blocks.images * rows * source.columns
        first_dy = dy[(begin * source.rows + top) * source.columns * filters.stride :]
        if as_it_is:
            panels = first_dy[filters.first :]
        else:
            _panels(first_dy, filters, count, blocks.images, rows * source.columns, panels)
        for f in range(0, filters.number, 2 * lanes):
            width = _width(filters.number - f, lanes)
            for tile in range(first, last):
                line = tile // tiles_of_line
                first_inner = (tile - line * tiles_of_line) * TILE_ROWS
                low, high = _reached(line, line, x.shape[1], source.rows, source)
                low, high = max(low, top), min(high, top + rows)
                left, right = _reached(
                    first_inner // channels, min((first_inner + TILE_ROWS - 1) // channels, size - 1), x.shape[2],
                    source.columns, source,
                )  # fmt: skip
                if low >= high or left >= right:
                    continue
                pixel = ((low - top) * source.columns + left) * blocks.images
                across, wide = source.columns * blocks.images, (right - left) * blocks.images
                shift = line * line_stride + first_inner
                place = tile * TILE_ROWS * row_stride + f
                panel, step = (f, filters.stride) if as_it_is else (f * pixels, width)
                if width == lanes:
                    _narrow_gradient(
                        padded, offsets, pixel, high - low, across, wide, shift, panels, panel, step, dw, place,
                        row_stride,
                    )  # fmt: skip
                else:
                    _wide_gradient(
                        padded, offsets, pixel, high - low, across, wide, shift, panels, panel, step, dw, place,
                        row_stride,
                    )  # fmt: skip


@kernel
def _reached(first: int, last: int, side: int, results: int, source: Source) -> tuple[int, int]:
    """Of `results` positions, the first and the one behind the last whose window has a line of the image.

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
        width = _width(filters.number - f, lanes)
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
