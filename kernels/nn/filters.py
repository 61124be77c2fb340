"""The filters of a convolution: which of them, and how their weight is packed for tiles of sums in registers."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.nn.vectors import VECTOR_BYTES

TILE_ROWS: Final = 8


class Filters(NamedTuple):
    """A range of the channels of a result: the first one, how many, and how many the result has in all."""

    first: int
    number: int
    stride: int


def padded_filters(count: int, dtype: DTypeLike) -> int:
    """`count` rounded up to whole vectors."""
    lanes = VECTOR_BYTES // np.dtype(dtype).itemsize
    return -(-count // lanes) * lanes


def tiles_of(count: int, dtype: DTypeLike) -> int:
    """The number of tiles of `count` filters."""
    return -(-padded_filters(count, dtype) // (2 * padded_filters(1, dtype)))


@kernel_part
def tile_width(filters: int, lanes: int) -> int:
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
        width = tile_width(filters.number - begin, lanes)
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
    weight: NDArray[Any],
    taps: NDArray[np.int64],
    filters: Filters,
    packed: NDArray[Any],
    first: int,
    last: int,
    lane: int,
) -> None:
    """Like `pack_weight`, for the gradient of the input: channels are its filters.

    Args:
        weight: (size * size, channels, filters.stride), C-contiguous.
        taps: pixels of the weight in the order of a window, see `Phase`.
        filters: those whose gradient is given.
        packed: see `pack_weight`.
        first: the first tile of channels.
        last: behind the last tile.
        lane: not used.
    """
    lanes = VECTOR_BYTES // weight.itemsize
    channels, number = weight.shape[1], len(taps)
    depth = number * filters.number
    for tile in range(first, last):
        begin = 2 * lanes * tile
        width = tile_width(channels - begin, lanes)
        inside = min(width, channels - begin)
        panel = packed[begin * depth : (begin + width) * depth].reshape(number, filters.number, width)
        for tap in range(number):
            for f in range(0, filters.number, lanes):
                end = min(f + lanes, filters.number)
                for i in range(inside):
                    source = weight[taps[tap], begin + i]
                    for j in range(f, end):
                        panel[tap, j, i] = source[filters.first + j]
                for i in range(inside, width):
                    for j in range(f, end):
                        panel[tap, j, i] = 0
