"""Decoding of index sections; `taihu.kernels.packing.sections` describes them.

Whatever the bytes are, nothing is read or written outside the arrays. A function that returns a number of positions
returns an error of `kernels.sections`, below 0, instead when it finds one. `start` and `length` are those of a piece.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.arrays import expect, expect_bounds, read_only
from taihu.kernels.base.bits import integer, load_word, trailing_zeros
from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.packing.sections import (
    BAD_BOUNDS,
    BAD_PARAMETER,
    BAD_VARINT,
    BITMAP,
    DENSE,
    EMPTY,
    MAX_PARAMETER,
    MAX_VARINT_BYTES,
    MISCOUNTED,
    OUTSIDE,
    PADDED,
    POSITIONS,
    REASONS,
    RICE,
    TRAILING,
    TRUNCATED,
    UNKNOWN,
    VARINT,
    bounds_ascend,
)

Indices = NDArray[np.int32]
Octets = NDArray[np.uint8]
Bounds = NDArray[np.int64]


def unpack(message: Octets, bounds: Bounds, count: int, out_indices: Indices) -> None:
    """Decode index sections into `out_indices[:count]`; whatever the bytes are, nothing else is read or written.

    Nothing is allocated, and the GIL is released.

    Args:
        message: shape (bytes,), uint8: the sections and nothing else; may be read-only.
        bounds: shape (pieces, 2), int64: where the pieces lie in the arena of whoever decodes, ascending, disjoint.
        count: how many positions there must be.
        out_indices: shape (>= count,), int32; on return ascending positions, each inside its piece.

    Raises:
        ValueError: the sections are not `count` positions in these pieces; `out_indices` holds anything then.
    """
    expect("message", message, np.uint8, 1)
    expect("out_indices", out_indices, np.int32, 1)
    expect_bounds(bounds)
    if not 0 <= count <= len(out_indices):
        raise ValueError(f"{count} indices into {len(out_indices)} places: expected as many places at least")
    code = read_sections(read_only(message), read_only(bounds), out_indices[:count])
    if code < 0:
        raise ValueError(REASONS[code])


@kernel
def read_sections(message: Octets, bounds: NDArray[np.int64], out: Indices) -> int:
    """The kernel of `unpack`: fill `out`; returns 0 or an error."""
    if not bounds_ascend(bounds):
        return BAD_BOUNDS
    filled = 0
    at = 0
    for piece in range(len(bounds)):
        start, stop = integer(bounds[piece], 0), integer(bounds[piece], 1)
        kept, at = _read_section(message, at, start, stop - start, out[filled:])
        if kept < 0:
            return kept
        filled += kept
    if at != len(message):
        return TRAILING
    return 0 if filled == len(out) else MISCOUNTED


@kernel_part
def _read_section(message: Octets, at: int, start: int, length: int, out: Indices) -> tuple[int, int]:
    """Write the positions of one section to the front of `out`; returns their number and where the section ends."""
    if at >= len(message):
        return TRUNCATED, at
    encoding = message[at]
    kept, end = UNKNOWN, at + 1
    if encoding == EMPTY:
        kept = 0
    elif encoding == DENSE:
        kept = _fill(start, length, out)
    elif encoding == BITMAP:
        kept, end = _read_bitmap(message, end, start, length, out)
    elif encoding == VARINT:
        kept, end = _read_varint_gaps(message, end, start, length, out)
    elif encoding == RICE:
        kept, end = _read_rice(message, end, start, length, out)
    return kept, end


@kernel_part
def _fill(start: int, length: int, out: Indices) -> int:
    if length > len(out):
        return MISCOUNTED
    for i in range(length):
        out[i] = start + i
    return length


@kernel_part
def _read_bitmap(message: Octets, at: int, start: int, length: int, out: Indices) -> tuple[int, int]:
    end = at + (length + 7) // 8
    if end > len(message):
        return TRUNCATED, at
    if length % 8 != 0 and integer(message, end - 1) >> (length % 8) != 0:
        return PADDED, at
    bitmap = message[at:end]
    kept = 0
    for byte in range(0, len(bitmap), 8):
        word = load_word(bitmap, byte)
        while word != 0:
            if kept == len(out):
                return MISCOUNTED, at
            out[kept] = start + 8 * byte + trailing_zeros(word)
            kept += 1
            word &= word - np.uint64(1)
    return kept, end


@kernel_part
def _read_varint(message: Octets, at: int) -> tuple[int, int]:
    """The number at byte `at`, or an error, and where it ends."""
    value = 0
    for i in range(min(MAX_VARINT_BYTES, len(message) - at)):
        byte = integer(message, at + i)
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            superfluous = byte == 0 and i > 0
            return (BAD_VARINT if superfluous or value >= POSITIONS else value), at + i + 1
    return (TRUNCATED if len(message) - at < MAX_VARINT_BYTES else BAD_VARINT), at


@kernel_part
def _read_count(message: Octets, at: int, most: int) -> tuple[int, int]:
    count, at = _read_varint(message, at)
    return (count if count <= most and count != 0 else MISCOUNTED), at


@kernel_part
def _read_varint_gaps(message: Octets, at: int, start: int, length: int, out: Indices) -> tuple[int, int]:
    kept, at = _read_count(message, at, min(length, len(out)))
    position = -1
    for i in range(kept):
        gap, at = _read_varint(message, at)
        if gap < 0:
            return gap, at
        position += gap + 1
        if position >= length:
            return OUTSIDE, at
        out[i] = start + position
    return kept, at


@kernel_part
def _read_rice(message: Octets, at: int, start: int, length: int, out: Indices) -> tuple[int, int]:
    kept, at = _read_count(message, at, min(length, len(out)))
    if kept < 0:
        return kept, at
    if at >= len(message):
        return TRUNCATED, at
    parameter = integer(message, at)
    if parameter > MAX_PARAMETER:
        return BAD_PARAMETER, at
    string = message[at + 1 :]
    if kept * (parameter + 1) > 8 * len(string):
        return TRUNCATED, at
    _read_remainders(string, parameter, out[:kept])
    size = _read_quotients(string, parameter, start, length, out[:kept])
    return (kept if size >= 0 else size), at + 1 + size


@kernel_part
def _read_remainders(string: Octets, parameter: int, out: Indices) -> None:
    mask = (1 << parameter) - 1
    word = 0
    bits = 0
    at = 0
    for i in range(len(out)):
        while bits < parameter:
            word |= integer(string, at) << bits
            at += 1
            bits += 8
        out[i] = word & mask
        word >>= parameter
        bits -= parameter


@kernel_part
def _read_quotients(string: Octets, parameter: int, start: int, length: int, out: Indices) -> int:
    """Turn the remainders in `out` into positions; returns the bytes of the bit string, or an error."""
    first = len(out) * parameter
    at = first >> 3
    skipped = np.uint64(first & 7)
    word = (load_word(string, at) >> skipped) << skipped
    remainders = 0
    bit = first
    for i in range(len(out)):
        while word == 0:
            at += 8
            if at >= len(string):
                return TRUNCATED
            word = load_word(string, at)
        bit = 8 * at + trailing_zeros(word)
        word &= word - np.uint64(1)
        remainders += integer(out, i)
        quotients = bit - first - i
        position = (quotients << parameter) + remainders + i
        # The sum of the quotients is held to what it can be because its shift could overflow.
        if quotients > length >> parameter or position >= length:
            return OUTSIDE
        out[i] = start + position
    if integer(string, bit >> 3) >> ((bit & 7) + 1) != 0:
        return PADDED
    return (bit >> 3) + 1
