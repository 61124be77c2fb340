"""Encoding of index sections; `taihu.kernels.packing.sections` describes them.

A function that returns an int returns a number of bytes or the place after those written; below 0 it is an error of
`kernels.sections`. `selected` are the positions in one piece (int32, ascending), which begins at position `start`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.arrays import expect, expect_bounds, read_only
from taihu.kernels.base.bits import integer
from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.packing.sections import (
    BAD_BOUNDS,
    BITMAP,
    DENSE,
    EMPTY,
    MAX_VARINT_BYTES,
    NO_ROOM,
    NOT_ASCENDING,
    REASONS,
    RICE,
    VARINT,
    bounds_ascend,
)

Indices = NDArray[np.int32]
Octets = NDArray[np.uint8]
Bounds = NDArray[np.int64]


def pack(
    indices: Indices, values: NDArray[Any], bounds: Bounds, out_values: NDArray[Any], out_bytes: Octets
) -> tuple[int, int]:
    """Copy the values and encode the positions of those entries of a selection that lie inside the pieces.

    Nothing is allocated, and the GIL is released.

    Args:
        indices: shape (n,), int32: ascending positions in the arena, each once; also outside the pieces.
        values: shape (n,): fp32, or 16-bit codes as uint16.
        bounds: shape (pieces, 2), int64: start and stop of each piece, ascending and disjoint.
        out_values: dtype of `values`; room for the entries inside the pieces.
        out_bytes: uint8; `packed_bound(n, pieces)` bytes suffice.

    Returns:
        The number of entries inside the pieces (so many of `out_values` are set), and of bytes of `out_bytes`.

    Raises:
        ValueError: dtypes or shapes do not fit, bounds or the indices of a piece do not ascend, or an output is too
            small.
    """
    expect("indices", indices, np.int32, 1)
    expect("values", values, out_values.dtype, 1)
    expect("out_bytes", out_bytes, np.uint8, 1)
    expect_bounds(bounds)
    if len(values) != len(indices):
        raise ValueError(f"{len(indices)} indices and {len(values)} values: expected one value for each index")
    count, size = write_sections(read_only(indices), read_only(values), read_only(bounds), out_values, out_bytes)
    if count < 0:
        raise ValueError(REASONS[count])
    return count, size


def packed_bound(count: int, pieces: int) -> int:
    """Bytes that always suffice for the sections of `count` indices in `pieces` pieces."""
    return (1 + MAX_VARINT_BYTES) * pieces + MAX_VARINT_BYTES * count


@kernel
def write_sections(
    indices: Indices, values: NDArray[Any], bounds: NDArray[np.int64], out_values: NDArray[Any], out_bytes: Octets
) -> tuple[int, int]:
    """The kernel of `pack`; returns the numbers of entries and bytes, or an error and 0."""
    if not bounds_ascend(bounds):
        return BAD_BOUNDS, 0
    filled = 0
    at = 0
    for piece in range(len(bounds)):
        start, stop = integer(bounds[piece], 0), integer(bounds[piece], 1)
        first, last = _count_below(indices, start), _count_below(indices, stop)
        if last - first > len(out_values) - filled:
            return NO_ROOM, 0
        at = _write_section(indices[first:last], start, stop - start, out_bytes, at)
        if at < 0:
            return at, 0
        for i in range(first, last):
            out_values[filled] = values[i]
            filled += 1
    return filled, at


@kernel_part
def _count_below(indices: Indices, limit: int) -> int:
    low, high = 0, len(indices)
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


@kernel_part
def _write_section(selected: Indices, start: int, length: int, out: Octets, at: int) -> int:
    """Write one section at byte `at`; returns where it ends."""
    encoding, size, parameter = _choose(selected, start, length)
    if size < 0:
        return size
    end = at + 1 + size
    if end > len(out):
        return NO_ROOM
    out[at] = encoding
    if encoding == BITMAP:
        _write_bitmap(selected, start, out[at + 1 : end])
    elif encoding == VARINT:
        _write_varint_gaps(selected, start, out[at + 1 : end])
    elif encoding == RICE:
        _write_rice(selected, start, parameter, out[at + 1 : end])
    return end


@kernel_part
def _choose(selected: Indices, start: int, length: int) -> tuple[int, int, int]:
    """The encoding of the fewest bytes, their number without the byte that names it, and the Rice parameter."""
    kept = len(selected)
    if kept == 0:
        return EMPTY, 0, 0
    gaps_size = _varint_gaps_size(selected, start)
    # The search has found the first and the last position inside the piece, so that without a negative gap all are.
    if gaps_size < 0:
        return EMPTY, gaps_size, 0
    if kept == length:
        return DENSE, 0, 0
    parameter, bits = _rice_parameter(selected, start)
    encoding, size = BITMAP, (length + 7) // 8
    if _varint_size(kept) + gaps_size < size:
        encoding, size = VARINT, _varint_size(kept) + gaps_size
    if _varint_size(kept) + 1 + (bits + 7) // 8 < size:
        encoding, size = RICE, _varint_size(kept) + 1 + (bits + 7) // 8
    return encoding, size, parameter


@kernel_part
def _gap(selected: Indices, i: int) -> int:
    return integer(selected, i) - integer(selected, i - 1) - 1


@kernel_part
def _varint_size(value: int) -> int:
    return 1 + (value >= 1 << 7) + (value >= 1 << 14) + (value >= 1 << 21) + (value >= 1 << 28)


@kernel_part
def _varint_gaps_size(selected: Indices, start: int) -> int:
    gap = integer(selected, 0) - start
    lowest = gap
    size = _varint_size(gap)
    for i in range(1, len(selected)):
        gap = _gap(selected, i)
        lowest = min(lowest, gap)
        size += _varint_size(gap)
    return size if lowest >= 0 else NOT_ASCENDING


@kernel_part
def _rice_parameter(selected: Indices, start: int) -> tuple[int, int]:
    """The parameter of the fewest bits, and these bits.

    They are a convex function of the parameter k, which falls while 3 * 2**k <= mean gap and rises from
    2**k >= mean gap on, however the gaps vary: only floor(log2(mean gap)) and its neighbours come into question.
    """
    kept = len(selected)
    mean = (integer(selected, kept - 1) - start + 1 - kept) // kept
    lowest = 0
    while mean >> (lowest + 2) > 0:
        lowest += 1
    quotient = (integer(selected, 0) - start) >> lowest
    sum0, sum1, sum2 = quotient, quotient >> 1, quotient >> 2
    for i in range(1, kept):
        quotient = _gap(selected, i) >> lowest
        sum0 += quotient
        sum1 += quotient >> 1
        sum2 += quotient >> 2
    best, bits = lowest, sum0 + kept * (lowest + 1)
    if sum1 + kept * (lowest + 2) < bits:
        best, bits = lowest + 1, sum1 + kept * (lowest + 2)
    if sum2 + kept * (lowest + 3) < bits:
        best, bits = lowest + 2, sum2 + kept * (lowest + 3)
    return best, bits


@kernel_part
def _write_bitmap(selected: Indices, start: int, out: Octets) -> None:
    out[:] = 0
    for i in range(len(selected)):
        position = integer(selected, i) - start
        out[position >> 3] |= np.uint8(1 << (position & 7))


@kernel_part
def _write_varint(value: int, out: Octets, at: int) -> int:
    while value >= 128:
        out[at] = (value & 127) | 128
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@kernel_part
def _write_varint_gaps(selected: Indices, start: int, out: Octets) -> None:
    at = _write_varint(len(selected), out, 0)
    at = _write_varint(integer(selected, 0) - start, out, at)
    for i in range(1, len(selected)):
        at = _write_varint(_gap(selected, i), out, at)


@kernel_part
def _write_rice(selected: Indices, start: int, parameter: int, out: Octets) -> None:
    at = _write_varint(len(selected), out, 0)
    out[at] = parameter
    string = out[at + 1 :]
    string[:] = 0
    _write_remainders(selected, start, parameter, string)
    previous = start - 1
    bit = len(selected) * parameter
    for i in range(len(selected)):
        position = integer(selected, i)
        bit += (position - previous - 1) >> parameter
        string[bit >> 3] |= np.uint8(1 << (bit & 7))
        bit += 1
        previous = position


@kernel_part
def _write_remainders(selected: Indices, start: int, parameter: int, string: Octets) -> None:
    mask = (1 << parameter) - 1
    word = 0
    bits = 0
    at = 0
    previous = start - 1
    for i in range(len(selected)):
        position = integer(selected, i)
        word |= ((position - previous - 1) & mask) << bits
        bits += parameter
        previous = position
        while bits >= 8:
            string[at] = word & 255
            at += 1
            word >>= 8
            bits -= 8
    if bits > 0:
        string[at] = word
