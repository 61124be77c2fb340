"""Sparse selections as index sections and values: what a frame carries instead of every element.

A frame covers pieces, which are ranges of an arena. For each piece in order there is one section, the next follows
without a gap. Its positions p_0 < p_1 < ... count from the start of the piece; its gaps are g_0 = p_0 and
g_i = p_i - p_(i-1) - 1. Byte 0 of a section is its encoding:

=====  ========  =================================================================================================
value  encoding  what follows byte 0
=====  ========  =================================================================================================
0      empty     nothing: no element is kept
1      dense     nothing: every element of the piece is kept
2      bitmap    ceil(length / 8) bytes: bit i says whether element i is kept
3      varint    the count n as varint, then n gaps as varints
4      Rice      n as varint, the parameter k in one byte, then one bit string: n remainders g mod 2**k of k bits,
                 then n quotients floor(g / 2**k) in unary, q zeros and a one each
=====  ========  =================================================================================================

A varint is an unsigned LEB128 number below 2**31: 7 bits a byte, lowest first, bit 7 set in all but the last byte, no
superfluous bytes. Bit i of a bit string is bit i mod 8 (0 is the least significant) of its byte i div 8, numbers of
several bits lie with their lowest bit first; the bits that fill the last byte are 0. n is at least 1, k at most 30.
`pack` takes the encoding of the fewest bytes (the first in the table of equals), with the k of the fewest bits; a
reader accepts any. (docs/methods.md section 1.5.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from taihu.kernels.base.bits import read_only
from taihu.kernels.packing.section_reader import read_sections
from taihu.kernels.packing.section_writer import write_sections
from taihu.kernels.packing.sections import MAX_VARINT_BYTES, REASONS

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
    _expect("indices", indices, np.int32, 1)
    _expect("values", values, out_values.dtype, 1)
    _expect("out_bytes", out_bytes, np.uint8, 1)
    _expect_bounds(bounds)
    if len(values) != len(indices):
        raise ValueError(f"{len(indices)} indices and {len(values)} values: expected one value for each index")
    count, size = write_sections(read_only(indices), read_only(values), read_only(bounds), out_values, out_bytes)
    if count < 0:
        raise ValueError(REASONS[count])
    return count, size


def packed_bound(count: int, pieces: int) -> int:
    """Bytes that always suffice for the sections of `count` indices in `pieces` pieces."""
    return (1 + MAX_VARINT_BYTES) * pieces + MAX_VARINT_BYTES * count


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
    _expect("message", message, np.uint8, 1)
    _expect("out_indices", out_indices, np.int32, 1)
    _expect_bounds(bounds)
    if not 0 <= count <= len(out_indices):
        raise ValueError(f"{count} indices into {len(out_indices)} places: expected as many places at least")
    code = read_sections(read_only(message), read_only(bounds), out_indices[:count])
    if code < 0:
        raise ValueError(REASONS[code])


def _expect(name: str, array: NDArray[Any], dtype: DTypeLike, dimensions: int) -> None:
    if array.dtype != dtype or array.ndim != dimensions:
        raise ValueError(
            f"{name}: {array.dtype}{list(array.shape)}; expected {np.dtype(dtype)} in {dimensions} dimension(s)"
        )


def _expect_bounds(bounds: Bounds) -> None:
    _expect("bounds", bounds, np.int64, 2)
    if bounds.shape[1] != 2:
        raise ValueError(f"bounds: shape {list(bounds.shape)}; expected [pieces, 2], a start and a stop each")
