"""Digests of fp32 values: sums over elements, so that digests of parts add up to the digest of the whole.

An element is known by its place in the arena of all that is exchanged. Its bits, as a 32-bit integer, count times an
odd 64-bit factor that belongs to its place; the sum is modulo 2**64. So one bit that turned, two values that changed
places, and a part that is missing show in `bits`. Zeros count nothing: values that were selected have the digest of
the array which holds them among zeros. -0.0 counts as 0.0.

`total` is a weighted sum of the values in fp64, with weights from 1 to 2, by which sums of workers are compared with
what went in. Weights differ from place to place, so that gradients which cancel out count, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Prime, so that layers of any shape meet all factors.
_PERIOD: Final = 1021
_BLOCK: Final = _PERIOD * 64
_WORD: Final = 1 << 64

Values = NDArray[np.float32]
Bounds = Sequence[tuple[int, int]] | NDArray[np.int64]


class Digest(NamedTuple):
    """The digest of some values.

    Attributes:
        bits: of their bits, from 0 to 2**64 - 1.
        total: their weighted sum; None where one is not finite.
        size: the sum of their magnitudes; None as `total`.
    """

    bits: int
    total: float | None
    size: float | None


def _mixed(count: int) -> NDArray[np.uint64]:
    """Numbers that look drawn at random, the same everywhere: splitmix64 (Steele et al. 2014)."""
    words = (np.arange(1, count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _factors() -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    mixed = _mixed(_PERIOD)
    factors = mixed | np.uint64(1)
    weights = 1.0 + (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    factors.flags.writeable = weights.flags.writeable = False
    return factors, weights


_FACTORS, _WEIGHTS = _factors()


def bits_of(values: Values, bounds: Bounds) -> int:
    """`Digest.bits` alone, in less time than `digest_of` takes; arguments and errors are those of `digest_of`."""
    columns = np.zeros(_PERIOD, dtype=np.uint64)
    for start, part in _placed(values, bounds):
        _fold(_words(part), start, columns)
    return int((columns * _FACTORS).sum())


def digest_of(values: Values, bounds: Bounds) -> Digest:
    """The digest of values that cover ranges of the arena.

    Args:
        values: shape (n,), fp32, contiguous: those of the first range, then of the next one.
        bounds: start and stop of each range; they have n elements together.

    Raises:
        ValueError: the ranges have another number of elements.
    """
    columns, sums, size = np.zeros(_PERIOD, dtype=np.uint64), np.zeros(_PERIOD), 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for start, part in _placed(values, bounds):
            _fold(_words(part), start, columns)
            _fold(part, start, sums)
            size += float(np.abs(part).sum(dtype=np.float64))
        return _digest(int((columns * _FACTORS).sum()), float(sums @ _WEIGHTS), size)


def digest_at(values: Values, places: NDArray[np.integer]) -> Digest:
    """The digest of values at places of the arena; both have shape (k,)."""
    columns = places % _PERIOD
    words = _words(values).astype(np.uint64)
    with np.errstate(invalid="ignore", over="ignore"):
        total = float(values.astype(np.float64) @ _WEIGHTS[columns])
        size = float(np.abs(values).sum(dtype=np.float64))
        return _digest(int((words * _FACTORS[columns]).sum()) % _WORD, total, size)


def _words(values: Values) -> NDArray[np.uint32]:
    """The bits of values, shape (n,), -0.0 as 0.0."""
    # A turned bit may make a NaN that computing complains of.
    with np.errstate(invalid="ignore"):
        return (values + np.float32(0)).view(np.uint32)


def _digest(bits: int, total: float, size: float) -> Digest:
    return Digest(bits, total, size) if np.isfinite(size) else Digest(bits, None, None)


def _placed(values: Values, bounds: Bounds) -> list[tuple[int, Values]]:
    """The values block by block, each with the place of its first one; a block is small enough for a cache."""
    ranges = [(int(start), int(stop)) for start, stop in bounds]
    if sum(stop - start for start, stop in ranges) != len(values):
        raise ValueError(f"{len(values)} values: expected as many as the ranges {ranges} have")
    placed, taken = [], 0
    for start, stop in ranges:
        for low in range(start, stop, _BLOCK):
            count = min(_BLOCK, stop - low)
            placed.append((low, values[taken : taken + count]))
            taken += count
    return placed


def _fold(items: NDArray[np.uint32] | Values, start: int, columns: NDArray[np.uint64] | NDArray[np.float64]) -> None:
    """Add each item to the column of its place, of which the first one is `start`."""
    column = start % _PERIOD
    head = min(len(items), (_PERIOD - column) % _PERIOD)
    columns[column : column + head] += items[:head]
    rows = (len(items) - head) // _PERIOD
    if rows:
        columns += items[head : head + rows * _PERIOD].reshape(rows, _PERIOD).sum(axis=0, dtype=columns.dtype)
    rest = items[head + rows * _PERIOD :]
    columns[: len(rest)] += rest
