"""Images as a convolution reads them: windows over padded blocks, a few images or a part of one at a time.

Images are copied with their border into memory that stays in the second-level cache; windows are read there without
looking at edges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.jit import kernel
from kernels.nn.filters import TILE_ROWS
from kernels.nn.window import Window

__all__ = [
    "Blocks",
    "Part",
    "Source",
    "mirrored_source",
    "padded_part",
    "part_of",
    "source_of",
    "window_offsets",
]


class Source(NamedTuple):
    """The windows of images; flat, as nested tuples take kernels microseconds to unpack.

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
        """Elements of the part of a padded image that so many rows of windows lie in."""
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
    """A block, which is padded and convolved at once: some rows of windows of some images, all rows or one image.

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
        """The number of blocks of a batch."""
        return -(-batch // self.images) * -(-source.rows // self.rows)


class Part(NamedTuple):
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
    return Source(size, stride, padding, 1, height, width, first_channel, channels, rows, columns)


def mirrored_source(window: Window, image: tuple[int, int], first_channel: int, channels: int) -> Source:
    """The source, made of the gradient of its result, of the gradient of a convolution of (height, width) images."""
    size, stride, padding = window
    height, width = (side + size - 1 for side in image)
    return Source(size, 1, size - 1 - padding, stride, height, width, first_channel, channels, *image)


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


@kernel
def part_of(x: NDArray[Any], source: Source, blocks: Blocks, block: int) -> Part:
    """The place of a block in the images `x`; the last one of a batch or an image may be smaller."""
    strips = -(-source.rows // blocks.rows)
    begin, top = block // strips * blocks.images, block % strips * blocks.rows
    return Part(begin, min(blocks.images, x.shape[0] - begin), top, min(blocks.rows, source.rows - top))


@kernel
def padded_part(x: NDArray[Any], source: Source, blocks: Blocks, part: Part, padded: NDArray[Any]) -> NDArray[Any]:
    """The images of a block with their border: copied to the front of `padded`, or where they are if it is plain."""
    if blocks.plain:
        return x[part.begin :].reshape(-1)[part.top * source.stride * source.padded_width * source.channels :]
    rows = (part.rows - 1) * source.stride + source.size
    _pad(x[part.begin : part.begin + part.images], source, part.top * source.stride, rows, padded)
    return padded


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
