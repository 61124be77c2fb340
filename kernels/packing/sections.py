"""Constants of the index sections that `taihu.kernels.packing.pack` describes, and what can be wrong with them."""

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
