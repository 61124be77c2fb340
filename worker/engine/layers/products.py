"""Matrix products of several threads."""

from __future__ import annotations

from typing import Final

import numpy as np

from taihu.worker.engine.base.layer import Array
from taihu.worker.engine.base.team import Team

_COLUMNS: Final = 256
_ROWS: Final = 256
# Larger blocks are not multiplied any faster.
_LARGEST: Final = 512
# Elements of a cache line.
_LINE: Final = 16


def even_side(length: int) -> int:
    """The side of blocks of so many rows or columns; by that alone, as blocks do not depend on threads.

    Each block has the other factor packed anew, so there are as few as possible; but of a few an even number, so that
    two threads have as many.
    """
    blocks = 2 * -(-length // (2 * _LARGEST))
    return -(-length // (blocks * _LINE)) * _LINE


def multiply(team: Team, a: Array, b: Array, out: Array, side: int = _COLUMNS) -> Array:
    """`out` = `a` @ `b`, (M, K), (K, N) and (M, N), by blocks of `side` columns; returns `out`.

    The blocks do not depend on the number of threads, and so neither do the bits. BLAS should have one thread.
    """

    def part(first: int, last: int, lane: int) -> None:
        for block in range(first, last):
            columns = slice(block * side, (block + 1) * side)
            np.matmul(a, b[:, columns], out=out[:, columns])

    team.run(part, -(-out.shape[1] // side))
    return out


def multiply_rows(team: Team, a: Array, b: Array, out: Array, side: int = _ROWS) -> Array:
    """The same by blocks of rows, for a product that has many rows and few columns."""

    def part(first: int, last: int, lane: int) -> None:
        for block in range(first, last):
            rows = slice(block * side, (block + 1) * side)
            np.matmul(a[rows], b, out=out[rows])

    team.run(part, -(-len(out) // side))
    return out
