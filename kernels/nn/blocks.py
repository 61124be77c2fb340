"""Images as a convolution reads them: windows over padded blocks, a few images or a part of one at a time.

Images are copied with their border into memory that stays in the second-level cache; windows are read there without
looking at edges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel_part
from taihu.kernels.nn.filters import TILE_ROWS, Filters
from taihu.kernels.nn.window import Window


class Source(NamedTuple):
    """The windows of images; flat, as nested tuples take kernels microseconds to unpack.

    Attributes:
        lines: of a window.
        size: pixels of a line.
        stride: distance of windows in the padded image, whose first pixel has the position 0.
        above: lines of the border above the image: negative where the image is cropped instead.
        before: pixels of the border before its lines, likewise.
        padded_height: of the padded image.
        padded_width: of the padded image.
        first_channel: of those that are read.
        channels: how many are read.
        rows: windows vertically.
        columns: windows horizontally.
    """

    lines: int
    size: int
    stride: int
    above: int
    before: int
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
        """Elements of the part of a padded image that so many rows of windows lie in."""
        return ((rows - 1) * self.stride + self.lines) * self.padded_width * self.channels

    def is_plain(self, images: tuple[int, ...], number: int, rows: int) -> bool:
        """Whether blocks of `number` images and so many rows of windows would be copied as they are.

        Not where the last block is smaller: tiles may read where the larger one would have gone on. Nor where the
        image is cropped on one side and padded on the other, which leaves its size.

        Args:
            images: the shape (B, H, W, all channels).
            number: of images in a block.
            rows: of windows in a block.
        """
        batch, *image = images
        needed = (self.rows - 1) * self.stride + self.lines
        padded = [self.padded_height, self.padded_width, self.channels]
        same = needed == image[0] and padded == image and self.above == self.before == 0
        return same and batch % number == 0 and self.rows % rows == 0


class Blocks(NamedTuple):
    """A block, which is padded and convolved at once: some rows of windows of some images, all rows or one image.

    Attributes:
        images: how many.
        rows: how many.
        plain: nothing is padded, which `Source.is_plain` allowed.
        together: a tile has the windows of several images at one position, where it has those at adjacent positions
            of one image otherwise. Then products with the border, many where images are small, are left out.
    """

    images: int
    rows: int
    plain: bool
    together: bool

    def in_batch(self, batch: int, source: Source) -> int:
        """The number of blocks of a batch."""
        return -(-batch // self.images) * -(-source.rows // self.rows)


class BlockPart(NamedTuple):
    """The windows of one block: `rows` rows of windows from `top` on of `images` images from `begin` on."""

    begin: int
    images: int
    top: int
    rows: int


def source_of(window: Window, image: tuple[int, int], first_channel: int, channels: int) -> Source:
    """The source of a forward convolution of images of (height, width)."""
    size, stride, padding = window
    height, width = (side + 2 * padding for side in image)
    rows, columns = ((side - size) // stride + 1 for side in (height, width))
    return Source(size, size, stride, padding, padding, height, width, first_channel, channels, rows, columns)


class Result(NamedTuple):
    """The places of a convolution's results in a one-dimensional array.

    Attributes:
        first: the first result of the first image.
        number: of channels, side by side.
        image: distance of images.
        row: distance of rows.
        column: distance of columns.
    """

    first: int
    number: int
    image: int
    row: int
    column: int


def result_of(source: Source, filters: Filters) -> Result:
    """The places of `filters` in (B, rows, columns, all filters)."""
    pixel = filters.stride
    return Result(filters.first, filters.number, source.pixels * pixel, source.columns * pixel, pixel)


class Phase(NamedTuple):
    """A part of the gradient of a convolution's input.

    Attributes:
        source: its windows, of the gradient of the convolution's result.
        result: its places.
        taps: kh * size + kw of the pixels of the weight that meet its windows, in their order; int64.
    """

    source: Source
    result: Result
    taps: NDArray[np.int64]


def phases_of(window: Window, image: tuple[int, int], filters: Filters, channels: Filters) -> tuple[Phase, ...]:
    """The gradient of the input of a convolution of (height, width) images, as convolutions of stride 1.

    A pixel of the input is met by every `stride`-th line and column of the kernel, and all pixels that are met by the
    same ones make a phase: one for stride 1, up to stride * stride otherwise. Pixels that the kernel skips, where it
    is smaller than the stride, are in none.

    Args:
        window: of the convolution.
        image: (height, width) of its input.
        filters: of its result, whose gradient is given.
        channels: of its input, whose gradient is made.
    """
    size, stride, _ = window
    height, width = image
    pixel = channels.stride
    found = []
    for row, column in np.ndindex(min(stride, size), min(stride, size)):
        top, rows, lines, above = _phase(window, row, height)
        left, columns, taps, before = _phase(window, column, width)
        if not rows or not columns:
            continue
        sides = (rows + lines - 1, columns + taps - 1)
        source = Source(lines, taps, 1, above, before, *sides, filters.first, filters.number, rows, columns)
        first = channels.first + (top * width + left) * pixel
        result = Result(first, channels.number, height * width * pixel, stride * width * pixel, stride * pixel)
        of_weight = np.arange(size**2).reshape(size, size)[row::stride, column::stride][::-1, ::-1]
        found.append(Phase(source, result, of_weight.reshape(-1).copy()))
    return tuple(found)


def _phase(window: Window, tap: int, side: int) -> tuple[int, int, int, int]:
    """Of the positions that the kernel's line `tap` meets: the first, their number, lines that meet them, border."""
    size, stride, padding = window
    first = (tap - padding) % stride
    lines = -(-(size - tap) // stride)
    return first, max(-(-(side - first) // stride), 0), lines, lines - 1 - (first + padding - tap) // stride


def window_offsets(source: Source, blocks: Blocks) -> NDArray[np.int64]:
    """The first elements of the windows of a block; and TILE_ROWS zeros.

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


@kernel_part
def part_of(x: NDArray[Any], source: Source, blocks: Blocks, block: int) -> BlockPart:
    """The place of a block in the images `x`; the last one of a batch or an image may be smaller."""
    strips = -(-source.rows // blocks.rows)
    begin, top = block // strips * blocks.images, block % strips * blocks.rows
    return BlockPart(begin, min(blocks.images, x.shape[0] - begin), top, min(blocks.rows, source.rows - top))


@kernel_part
def padded_part(
    x: NDArray[Any], source: Source, blocks: Blocks, part: BlockPart, padded: NDArray[Any]
) -> NDArray[Any]:
    """The images of a block with their border: copied to the front of `padded`, or where they are if it is plain."""
    if blocks.plain:
        return x[part.begin :].reshape(-1)[part.top * source.stride * source.padded_width * source.channels :]
    rows = (part.rows - 1) * source.stride + source.lines
    _pad(x[part.begin : part.begin + part.images], source, part.top * source.stride, rows, padded)
    return padded


@kernel_part
def _pad(x: NDArray[Any], source: Source, top: int, rows: int, padded: NDArray[Any]) -> None:
    """Copy `rows` rows, from row `top` on, of the padded images of `x` into the front of `padded`."""
    channels = source.channels
    images, height, width, all_channels = x.shape
    columns = source.padded_width
    # Columns of the padded image from the image's first to behind its last one.
    low = min(max(source.before, 0), columns)
    high = max(min(source.before + width, columns), low)
    lines = x.reshape(images * height, width * all_channels)
    span = columns * channels
    for image in range(images):
        for row in range(rows):
            start = (image * rows + row) * span
            target = padded[start : start + span]
            ih = top + row - source.above
            if ih < 0 or ih >= height:
                target[:] = 0
                continue
            target[: low * channels] = 0
            target[high * channels :] = 0
            line = lines[image * height + ih]
            if channels == all_channels:
                inside = target[low * channels : high * channels]
                original = line[(low - source.before) * channels : (high - source.before) * channels]
                for i in range(inside.size):
                    inside[i] = original[i]
                continue
            for column in range(low, high):
                pixel = target[column * channels : (column + 1) * channels]
                begin = (column - source.before) * all_channels + source.first_channel
                original = line[begin : begin + channels]
                for c in range(channels):
                    pixel[c] = original[c]
