"""Values of 8, 4 or 2 bits: whole multiples of a step that the values of a range share.

A code of b bits is k + L for the multiple k, between -L and L = 2**(b - 1) - 1; the step is the largest magnitude
over L, rounded up to 8 significant bits, so that it is a bfloat16. Codes lie in bytes with the first one lowest. All
arrays are contiguous; the kernels release the GIL.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.arrays import read_only
from taihu.kernels.base.bits import integer
from taihu.kernels.base.jit import kernel, kernel_part

FEW_BITS: Final = MappingProxyType({"int8": 8, "int4": 4, "int2": 2})
"""The number of bits of each type."""

STEP_BYTES: Final = 2
"""Bytes of a step, a bfloat16."""

_LEAST_STEP: Final = 2.0**-100

Values = NDArray[np.float32]
Indices = NDArray[np.int32]
Octets = NDArray[np.uint8]


def codes_bytes(count: int, bits: int) -> int:
    """Bytes of so many codes."""
    return -(-count * bits // 8)


@kernel
def largest_multiple(bits: int) -> int:
    """L, which is also the code of 0."""
    return (1 << (bits - 1)) - 1


@kernel
def take_multiples(residual: Values, indices: Indices, codes: Octets, bits: int) -> np.float32:
    """Move what a few bits hold of the entries at `indices` to `codes`, and keep the rest in `residual`.

    For a finite entry v, `residual + step * k == v` holds in fp32 afterwards: k is the nearest multiple, so that
    the rest is no larger than v, and a multiple of its last bit. Where an entry is infinite or NaN the step is NaN,
    and nothing of that entry remains.

    Args:
        residual: shape (n,), changed in place.
        indices: shape (m,), places in it.
        codes: shape (m,), out: a code in each byte.
        bits: 8, 4 or 2.

    Returns:
        The step; a value below half of it has the code of 0, and stays.
    """
    most = largest_multiple(bits)
    largest = np.float32(0.0)
    for j in range(len(indices)):
        magnitude = abs(residual[np.uint32(indices[j])])
        if not magnitude <= np.float32(3.4e38):
            return _take_nothing(residual, indices, codes, most)
        largest = max(largest, magnitude)
    step = _step(largest, most)
    per_step = 1.0 / np.float64(step)
    for j in range(len(indices)):
        place = np.uint32(indices[j])
        value = residual[place]
        multiple = np.rint(np.float64(value) * per_step)
        codes[j] = np.uint8(int(multiple) + most)
        residual[place] = np.float32(np.float64(value) - multiple * np.float64(step))
    return step


@kernel_part
def _take_nothing(residual: Values, indices: Indices, codes: Octets, most: int) -> np.float32:
    for j in range(len(indices)):
        place = np.uint32(indices[j])
        codes[j] = np.uint8(most)
        if not np.isfinite(residual[place]):
            residual[place] = np.float32(0.0)
    return np.float32(np.nan)


@kernel_part
def _step(largest: np.float32, most: int) -> np.float32:
    """The least number of 8 significant bits whose `most`-fold is no less than `largest`."""
    mantissa, exponent = math.frexp(max(np.float64(largest) / most, _LEAST_STEP))
    parts = math.ceil(mantissa * 256.0)
    while math.ldexp(parts / 256.0, exponent) * most < largest:
        parts += 1
    return np.float32(math.ldexp(parts / 256.0, exponent))


@kernel
def round_sums(  # noqa: PLR0917 - kernels take no keywords
    residual: Values,
    indices: Indices,
    sums: Values,
    bounds: NDArray[np.int64],
    bits: int,
    out_indices: Indices,
    out_values: Values,
    codes: Octets,
    steps: Values,
) -> int:
    """Add sums to `residual`, move what a few bits hold of these entries out of it, and leave zeros out.

    Each piece has a step of its own, see `take_multiples`. All of a piece with an entry that is not finite stay, and
    are NaN: whoever reads them is to know.

    Args:
        residual: shape (n,), changed in place.
        indices: shape (m,), ascending places in it, each in a piece.
        sums: shape (m,).
        bounds: shape (pieces, 2): start and stop of each piece, ascending and disjoint.
        bits: 8, 4 or 2.
        out_indices: shape (m,), out: the places of entries that are not zero.
        out_values: shape (m,), out: these, as whoever reads them decodes them.
        codes: shape (m,), out: the code of each in a byte.
        steps: shape (pieces,), out.

    Returns:
        The number of these entries.
    """
    count, begin = 0, 0
    for piece in range(len(bounds)):
        end = begin
        while end < len(indices) and integer(indices, end) < integer(bounds[piece], 1):
            place = np.uint32(indices[end])
            residual[place] = residual[place] + sums[end]
            end += 1
        step = take_multiples(residual, indices[begin:end], codes[begin:end], bits)
        steps[piece] = step
        zero = largest_multiple(bits)
        for j in range(begin, end):
            multiple = np.int64(codes[j]) - zero
            if multiple != 0 or np.isnan(step):
                out_indices[count] = indices[j]
                out_values[count] = np.float32(multiple * np.float64(step))
                codes[count] = codes[j]
                count += 1
        begin = end
    return count


@kernel
def pack_codes(codes: Octets, bits: int, out: Octets) -> int:
    """Pack `codes` (shape (m,), one in each byte) into `out`, of `codes_bytes(m, bits)` at least; returns these."""
    per_byte = 8 // bits
    size = (len(codes) + per_byte - 1) // per_byte
    for i in range(size):
        packed = 0
        for j in range(min(per_byte, len(codes) - i * per_byte)):
            packed |= integer(codes, i * per_byte + j) << (j * bits)
        out[i] = np.uint8(packed)
    return size


def read_codes(  # noqa: PLR0917 - as the kernel that it calls
    packed: Octets, bits: int, indices: Indices, bounds: NDArray[np.int64], steps: Values, out: Values
) -> None:
    """Decode the values at `indices` into `out`; whatever the bytes are, nothing else is read or written.

    Args:
        packed: shape (`codes_bytes(m, bits)`,); may be read-only.
        bits: 8, 4 or 2.
        indices: shape (m,), ascending, each inside a piece.
        bounds: shape (pieces, 2): start and stop of each piece, ascending and disjoint.
        steps: shape (pieces,).
        out: shape (m,).

    Raises:
        ValueError: the bytes are not so many, or one holds no code of these.
    """
    if len(packed) != codes_bytes(len(indices), bits) or len(steps) != len(bounds):
        raise ValueError(
            f"{len(packed)} bytes and {len(steps)} steps of {len(indices)} values of {bits} bits in {len(bounds)} "
            f"pieces: expected {codes_bytes(len(indices), bits)} bytes and a step for each piece"
        )
    if not _read(read_only(packed), bits, indices, read_only(bounds), read_only(steps), out):
        raise ValueError(f"a code of {bits} bits that means no value: expected at most {(1 << bits) - 2}")


@kernel
def _read(  # noqa: PLR0917 - kernels take no keywords
    packed: Octets, bits: int, indices: Indices, bounds: NDArray[np.int64], steps: Values, out: Values
) -> bool:
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    most = largest_multiple(bits)
    piece = 0
    for i in range(len(indices)):
        while piece < len(bounds) - 1 and integer(indices, i) >= integer(bounds[piece], 1):
            piece += 1
        code = (integer(packed, i // per_byte) >> (i % per_byte * bits)) & mask
        if code > 2 * most:
            return False
        out[i] = np.float32((code - most) * np.float64(steps[piece]))
    return True


def warm_up() -> None:
    """Compile these kernels, or load them from the disk cache, so that the first real call does not wait."""
    values, indices, codes = np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.uint8)
    step = take_multiples(values, indices, codes, 8)
    bounds = np.array([[0, 1]])
    round_sums(values, indices, values.copy(), bounds, 8, indices.copy(), values.copy(), codes, values.copy())
    pack_codes(codes, 8, codes)
    read_codes(codes, 8, indices, bounds, np.full(1, step, dtype=np.float32), values)
