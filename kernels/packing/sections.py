"""Index sections: the positions of sparse selections as bytes, which a frame carries instead of every element.

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

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.bits import integer
from taihu.kernels.base.jit import kernel_part

EMPTY, DENSE, BITMAP, VARINT, RICE = range(5)

POSITIONS = 2**31
MAX_PARAMETER = 30
MAX_VARINT_BYTES = 5

BAD_BOUNDS, NO_ROOM, NOT_ASCENDING = -1, -2, -3
TRUNCATED, TRAILING, UNKNOWN, OUTSIDE, MISCOUNTED = -4, -5, -6, -7, -8
BAD_VARINT, BAD_PARAMETER, PADDED = -9, -10, -11

REASONS = {
    BAD_BOUNDS: f"bounds: expected ascending, disjoint ranges of positions below {POSITIONS}",
    NO_ROOM: "outputs too small: expected packed_bound() bytes, and one value for each kept index",
    NOT_ASCENDING: "indices: expected ascending positions, each once",
    TRUNCATED: "index sections end too early",
    TRAILING: "index sections: bytes follow the last one",
    UNKNOWN: f"index sections: unknown encoding; expected 0 to {RICE}",
    OUTSIDE: "index sections: a position lies outside its piece",
    MISCOUNTED: "index sections: expected as many positions as there are values, and no more than the piece has",
    BAD_VARINT: f"index sections: a varint has superfluous bytes or is not below {POSITIONS}",
    BAD_PARAMETER: f"index sections: a Rice parameter is above {MAX_PARAMETER}",
    PADDED: "index sections: the bits that fill the last byte are not 0",
}


@kernel_part
def bounds_ascend(bounds: NDArray[np.int64]) -> bool:
    """Whether the ranges `bounds`, shape (pieces, 2), ascend, are disjoint, and hold no position too large."""
    previous = 0
    for piece in range(len(bounds)):
        start, stop = integer(bounds[piece], 0), integer(bounds[piece], 1)
        if not previous <= start <= stop <= POSITIONS:
            return False
        previous = stop
    return True
