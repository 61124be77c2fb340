"""Rows of a table by their numbers, and the sums of what flows back to each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel

# Numbers are given as floating-point values; more off than this they were not meant as whole ones.
_NEAR = 0.25


@kernel
def first_stranger(tokens: NDArray[Any], count: int) -> int:
    """The place of the first of `tokens` (N,) that is no whole number of 0..count-1, or -1."""
    for place in range(tokens.size):
        value = np.float64(tokens[place])
        nearest = math.floor(value + 0.5)
        if not (abs(value - nearest) < _NEAR and 0 <= nearest < count):
            return place
    return -1


@kernel
def take_rows(  # noqa: PLR0917 - arrays, and the part of the work
    tokens: NDArray[Any], table: NDArray[Any], y: NDArray[Any], first: int, last: int, lane: int
) -> None:
    """Write the row of `table` (count, C) for each of `tokens` `first` to `last` - 1 into `y` (N, C).

    Tokens are near whole numbers of 0..count-1, see `first_stranger`.
    """
    for place in range(first, last):
        row = table[np.int64(math.floor(tokens[place] + 0.5))]
        line = y[place]
        for c in range(line.size):
            line[c] = row[c]


@kernel
def add_rows(  # noqa: PLR0917 - arrays, and the part of the work
    tokens: NDArray[Any], dy: NDArray[Any], sums: NDArray[Any], width: int, first: int, last: int, lane: int
) -> None:
    """Add each row of `dy` (N, C) to the row of `sums` (count, C) that its token names, from the first to the last.

    Only columns first * width to last * width - 1 are added, so that threads share out columns: no bit depends on
    how many they are.
    """
    start, stop = first * width, min(last * width, dy.shape[1])
    for place in range(tokens.size):
        line = dy[place]
        row = sums[np.int64(math.floor(tokens[place] + 0.5))]
        for c in range(start, stop):
            row[c] += line[c]
