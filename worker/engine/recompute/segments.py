"""Cuts of a chain of layers into segments, so that training it by segments needs little memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

Together = Callable[[Iterable[int]], int]

# Sizes are estimates: budgets need not be tried in smaller steps than 1/64.
_BUDGET_STEP: Final = 64


def usual_segments(layers: int) -> int:
    """About the square root of the number of layers (Chen et al. 2016, section 4.1)."""
    return max(1, round(math.sqrt(layers)))


def memory(sizes: Sequence[int], inputs: Sequence[int], together: Together, bounds: Sequence[int]) -> int:
    """The sizes held at once, in the unit of the arguments: the largest segment, and the kept inputs."""
    largest = max(sum(sizes[start:stop]) for start, stop in pairwise(bounds))
    return largest + together([inputs[start] for start in bounds[:-1]])


class _Way(NamedTuple):
    """Segments from the first layer on; better ones are smaller."""

    kept: int
    largest: int
    bounds: tuple[int, ...]


def cut(sizes: Sequence[int], inputs: Sequence[int], together: Together, counts: range) -> tuple[int, ...]:
    """Cut layers into segments that need the least memory, or at most 1/64 more.

    Chen et al. 2016, algorithm 3, searches over budgets for a segment and cuts greedily for each; here the inputs are
    the smallest that keep to the budget.

    Args:
        sizes: what each layer holds while its segment is computed.
        inputs: what is kept where a segment begins with the layer, in the same unit; 0 for the first.
        together: what all kept inputs need: `sum` of them where all are held, `max` where one at a time is.
        counts: how many segments there may be, 1 to the number of layers.

    Returns:
        Bounds: segment k is made of the layers bounds[k] to bounds[k + 1] - 1.
    """
    budget = sum(sizes)
    least = min(_ways(sizes, [0] * len(sizes), together, counts, budget)).largest
    best: _Way | None = None
    while ways := list(_ways(sizes, inputs, together, counts, budget)):
        way = min(ways, key=lambda each: (each.kept, each.largest))
        if best is None or way.kept + way.largest < best.kept + best.largest:
            best = way
        # The smaller the budget, the more is kept.
        if way.kept + least >= best.kept + best.largest:
            break
        budget = way.largest - 1 - way.largest // _BUDGET_STEP
    assert best is not None  # noqa: S101
    return best.bounds


def _ways(
    sizes: Sequence[int], inputs: Sequence[int], together: Together, counts: range, budget: int
) -> Iterator[_Way]:
    """For each count, if there is one, the best way with no segment above `budget`.

    By the end of the last segment: the best way of k segments is one of k - 1 and another segment.
    """
    total = (0, *accumulate(sizes))
    ways = {0: _Way(0, 0, (0,))}
    for count in range(1, counts.stop):
        longer: dict[int, _Way] = {}
        for start, way in ways.items():
            kept = together((way.kept, inputs[start])) if start < len(sizes) else 0
            for stop in range(start + 1, len(total)):
                size = total[stop] - total[start]
                if size > budget:
                    break
                other = _Way(kept, max(way.largest, size), (*way.bounds, stop))
                longer[stop] = min(longer.get(stop, other), other)
        ways = longer
        if count in counts and len(sizes) in ways:
            yield ways[len(sizes)]
