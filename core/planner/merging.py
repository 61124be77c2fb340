"""Groups of layers with which the predicted step is shortest (docs/methods.md section 1.3).

Layers are numbered in backward order: index 0 is the paper's layer L, and merging index i into i + 1 is its merging
of layer l into l - 1.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.planner.groups import Group
from taihu.kernels.group_search import Pipeline, allow_group, relax, run_pipeline, search

Bounds = NDArray[np.int64]

TIE: Final = 1e-9
"""Groupings whose steps differ by less than this share are ties: sums in another order differ as much."""

_NARROW: Final = 2
_WIDE: Final = 8
_ALL: Final = sys.maxsize


def merge_greedy(costs: Pipeline) -> tuple[Group, ...]:
    """The paper's scan: merge layer l into l - 1 for l = L..2 if, and only if, the predicted step becomes shorter."""
    bounds = np.arange(len(costs.backward))
    shortest = _end(costs, bounds)
    place = 1
    while place < len(bounds) - 1:
        merged = np.delete(bounds, place)
        end = _end(costs, merged)
        if end < shortest:
            bounds, shortest = merged, end
        else:
            place += 1
    return _groups(bounds)


def merge_exact(costs: Pipeline, slack: float = TIE) -> tuple[Group, ...]:
    """The fewest groups with which a step takes at most 1 + `slack` times the shortest one of all 2^(L-1) groupings.

    Two narrow searches find a step that is nearly always the shortest; a full search for a shorter one proves it.
    Without so tight a bound there can be tens of thousands of states behind a layer.
    """
    layers = len(costs.backward) - 1
    relaxation = relax(costs, 0)
    shortest = np.array([0, layers])
    for width in (_NARROW, _WIDE, _ALL):
        found = search(costs, relaxation, _end(costs, shortest) * (1.0 - TIE), layers, width)
        if len(found) > 1:
            shortest = found
    return _groups(_with_fewest_groups(costs, shortest, slack))


def _with_fewest_groups(costs: Pipeline, shortest: Bounds, slack: float) -> Bounds:
    latest_end = _end(costs, shortest) * (1.0 + slack)
    relaxation = relax(costs, len(shortest) - 1)
    for most in range(1, len(shortest) - 1):
        allow_group(costs, relaxation, most)
        if relaxation.end[most, 0] <= latest_end:
            found = search(costs, relaxation, latest_end, most, _ALL)
            if len(found) > 1:
                return found
    return shortest


def _end(costs: Pipeline, bounds: Bounds) -> float:
    return run_pipeline(costs, bounds, np.empty((len(bounds) - 1, 2, len(costs.seconds))))


def _groups(bounds: Bounds) -> tuple[Group, ...]:
    return tuple(Group(first, following - 1) for first, following in pairwise(bounds.tolist()))
