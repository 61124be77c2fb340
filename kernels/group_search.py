"""Pipelines of groups: when each stage of each group runs, and which grouping of layers ends first.

Layers 0, 1, ... become ready in this order. A group is a range of them; it passes through stages in order, and every
stage serves one group after another. L layers, M stages, G groups; times are fp64 and none is negative.
`bounds_G1` says that group g is layers `bounds_G1[g]` to `bounds_G1[g + 1] - 1`.

The search goes through the layers and keeps, behind each one, the states that may still win. A state is the instants
at which the stages become free (its clocks). Three things keep the states few, and none of them loses an optimum: a
state is dropped when another one has no later clock; when `Relaxation.remaining` shows that it, or one that is as
early as the earliest of all in every stage, cannot end within the bound; and its clocks are set forward to where an
earlier one would make no difference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class Pipeline(NamedTuple):
    """The times of all groups that there may be.

    Attributes:
        seconds: shape (M, L, L), [s, i, j] is stage s for the group of layers i to j; read for i <= j only.
        backward: shape (L + 1,), time until the layers before l are ready: prefix sums, the first is 0.
        inline: whether stage 0 is also what makes layers ready: the two take turns.
        start: the instant at which layer 0 begins.
    """

    seconds: Array
    backward: Array
    inline: bool
    start: float


class Relaxation(NamedTuple):
    """Bounds that hold for every way to group the layers from i on; L stands for behind the last layer.

    Row k of the first two holds for at most k more groups; a single row 0 for any number of them.

    Attributes:
        remaining: shape (K, M, L + 1), [k, s, i], at least so long after stage s is free for layer i the last group
            ends.
        end: shape (K, L + 1), [k, i], the last group does not end before, however early the stages are free.
        arrival: shape (M, L + 1), [s, i], layer i's group is not at stage s before this instant.
        passage: shape (M, M, L + 1), [q, s, i], at least so long is layer i's group on its way from the start of
            stage q to stage s > q.
    """

    remaining: Array
    end: Array
    arrival: Array
    passage: Array


@kernel
def run_pipeline(pipeline: Pipeline, bounds_G1: Indices, times_G2M: Array) -> float:
    """Fill in when each stage of each group starts (row 0) and ends (row 1); returns the end of the last one."""
    stages = len(pipeline.seconds)
    clocks = np.full(stages, pipeline.start)
    for g in range(len(bounds_G1) - 1):
        _advance(pipeline, clocks, bounds_G1[g], bounds_G1[g + 1] - 1, times_G2M[g])
        clocks[:] = times_G2M[g, 1]
    return float(clocks[stages - 1])


@kernel_part
def _advance(pipeline: Pipeline, clocks: Array, first: int, last: int, times_2M: Array) -> None:
    """Starts and ends of the stages of the group of layers `first` to `last`, from the clocks before it."""
    begin = clocks[0] - pipeline.backward[first] if pipeline.inline else pipeline.start
    end = begin + pipeline.backward[last + 1]
    for stage in range(len(clocks)):
        start = max(end, clocks[stage])
        end = start + pipeline.seconds[stage, first, last]
        times_2M[0, stage] = start
        times_2M[1, stage] = end


@kernel
def relax(pipeline: Pipeline, most_groups: int) -> Relaxation:
    """Bounds for any number of groups; with `most_groups` above 0 rows for so many, only row 0 filled in.

    Each is the minimum over all groups that begin at a layer; O(M^2 L^2).
    """
    stages, layers, _ = pipeline.seconds.shape
    remaining = np.zeros((most_groups + 1, stages, layers + 1))
    end = np.zeros((most_groups + 1, layers + 1))
    arrival = np.full((stages, layers + 1), np.inf)
    passage = np.full((stages, stages, layers + 1), np.inf)
    relaxation = Relaxation(remaining, end, arrival, passage)
    for first in range(layers):
        for last in range(first, layers):
            _relax_passage(pipeline, relaxation, first, last)
    if most_groups:
        remaining[0, :, :layers] = np.inf
        end[0, :layers] = np.inf
    else:
        _fill_row(pipeline, relaxation, 0, 0)
    return relaxation


@kernel_part
def _relax_passage(pipeline: Pipeline, relaxation: Relaxation, first: int, last: int) -> None:
    """Take the group of layers `first` to `last` into account in `arrival` and `passage`."""
    own = pipeline.backward[last + 1] - pipeline.backward[first] if pipeline.inline else 0.0
    instant = pipeline.start if pipeline.inline else pipeline.start + pipeline.backward[last + 1]
    for q in range(len(pipeline.seconds)):
        relaxation.arrival[q, first] = min(relaxation.arrival[q, first], instant)
        elapsed = own if q == 0 else 0.0
        instant += elapsed + pipeline.seconds[q, first, last]
        for s in range(q + 1, len(pipeline.seconds)):
            elapsed += pipeline.seconds[s - 1, first, last]
            relaxation.passage[q, s, first] = min(relaxation.passage[q, s, first], elapsed)


@kernel
def allow_group(pipeline: Pipeline, relaxation: Relaxation, groups: int) -> None:
    """Fill in the row for at most `groups` groups; that for one less has been."""
    _fill_row(pipeline, relaxation, groups, groups - 1)


@kernel_part
def _fill_row(pipeline: Pipeline, relaxation: Relaxation, row: int, following: int) -> None:
    """A row of bounds from the row that holds behind the first group."""
    stages, layers, _ = pipeline.seconds.shape
    remaining, remaining_behind = relaxation.remaining[row], relaxation.remaining[following]
    end, end_behind = relaxation.end[row], relaxation.end[following]
    for first in range(layers - 1, -1, -1):
        remaining[:, first] = np.inf
        end[first] = np.inf
        for last in range(first, layers):
            longest = 0.0
            for q in range(stages - 1, -1, -1):
                longest = pipeline.seconds[q, first, last] + max(longest, remaining_behind[q, last + 1])
                if q == 0 and pipeline.inline:
                    longest += pipeline.backward[last + 1] - pipeline.backward[first]
                remaining[q, first] = min(remaining[q, first], longest)
            ready = pipeline.start + pipeline.backward[first if pipeline.inline else last + 1]
            end[first] = min(end[first], max(ready + longest, end_behind[last + 1]))


class _States(NamedTuple):
    """States, one after another: those behind a layer stand together.

    Attributes:
        clocks: shape (K, M).
        links: shape (K, 3), its predecessor, the first layer of its last group, and its number of groups (0 when any
            number may be).
    """

    clocks: Array
    links: Indices


@kernel
def search(pipeline: Pipeline, relaxation: Relaxation, latest_end: float, most_groups: int, width: int) -> Indices:
    """Find the grouping that ends first.

    Args:
        pipeline: at least one layer.
        relaxation: what `relax` returned for it; if with rows, those up to `most_groups` filled in.
        latest_end: only groupings that end by this instant, which is finite, are found.
        most_groups: only groupings of at most so many groups are found; L for any.
        width: states kept behind a layer. What is found is the best only if there were not more.

    Returns:
        `bounds_G1` of the grouping, of length 1 when there is none.
    """
    stages, layers, _ = pipeline.seconds.shape
    limited = most_groups < layers
    states = _States(np.empty((1024, stages)), np.empty((1024, 3), dtype=np.int64))
    begin = np.zeros(layers + 2, dtype=np.int64)
    states.clocks[0] = pipeline.start
    states.links[0] = 0
    earliest = np.full((layers + 1, stages), np.inf)
    earliest[0] = pipeline.start
    begin[1] = end = 1
    times = np.empty((2, stages))
    ends = times[1]
    for last in range(layers):
        for first in range(last, -1, -1):
            _advance(pipeline, earliest[first], first, last, times)
            if _end_at_least(relaxation, ends, most_groups - 1 if limited else 0, last + 1) > latest_end:
                continue
            for state in range(begin[first], begin[first + 1]):
                groups = states.links[state, 2] + limited
                _advance(pipeline, states.clocks[state], first, last, times)
                if _end_at_least(relaxation, ends, most_groups - groups if limited else 0, last + 1) > latest_end:
                    continue
                _set_forward(relaxation, ends, last + 1)
                if _is_dominated(states, begin[last + 1], end, ends, groups):
                    continue
                end = _drop_dominated(states, begin[last + 1], end, ends, groups)
                place = end
                if end - begin[last + 1] == width:
                    place = _least_promising(relaxation, states.clocks, begin[last + 1], end, last + 1)
                elif end == len(states.clocks):
                    states = _twice_the_room(states)
                states.clocks[place] = ends
                states.links[place, 0], states.links[place, 1], states.links[place, 2] = state, first, groups
                end = max(end, place + 1)
        begin[last + 2] = end
        for state in range(begin[last + 1], end):
            earliest[last + 1] = np.minimum(earliest[last + 1], states.clocks[state])
    return _trace_back(states, int(begin[layers]), end, layers)


@kernel_part
def _twice_the_room(states: _States) -> _States:
    clocks = np.concatenate((states.clocks, np.empty_like(states.clocks)))
    return _States(clocks, np.concatenate((states.links, np.empty_like(states.links))))


@kernel_part
def _end_at_least(relaxation: Relaxation, clocks: Array, row: int, following: int) -> float:
    """The earliest end of the last group, if the stages are free for layer `following` at these clocks."""
    end = relaxation.end[row, following]
    for stage in range(len(clocks)):
        end = max(end, clocks[stage] + relaxation.remaining[row, stage, following])
    return float(end)


@kernel_part
def _set_forward(relaxation: Relaxation, clocks: Array, following: int) -> None:
    """Set the clocks to where layer `following` arrives at the earliest; behind the last one only the end counts."""
    stages, ends = relaxation.arrival.shape
    if following == ends - 1:
        clocks[: stages - 1] = 0.0
        return
    for stage in range(stages):
        clocks[stage] = max(clocks[stage], relaxation.arrival[stage, following])
        for later in range(stage + 1, stages):
            clocks[later] = max(clocks[later], clocks[stage] + relaxation.passage[stage, later, following])


@kernel_part
def _is_dominated(states: _States, begin: int, end: int, candidate: Array, groups: int) -> bool:
    """Whether one of the states `begin` to `end` is as good; it moves forward among them, as it may be so again."""
    clocks, links = states
    for state in range(begin, end):
        if links[state, 2] > groups:
            continue
        later = False
        for stage in range(len(candidate)):
            later |= clocks[state, stage] > candidate[stage]
        if later:
            continue
        place = (begin + state) // 2
        for stage in range(len(candidate)):
            clocks[state, stage], clocks[place, stage] = clocks[place, stage], clocks[state, stage]
        for item in range(3):
            links[state, item], links[place, item] = links[place, item], links[state, item]
        return True
    return False


@kernel_part
def _drop_dominated(states: _States, begin: int, end: int, candidate: Array, groups: int) -> int:
    """Close up the states `begin` to `end` over those that the candidate replaces; returns the end of the rest."""
    clocks, links = states
    kept = begin
    for state in range(begin, end):
        better = links[state, 2] < groups
        for stage in range(len(candidate)):
            better |= clocks[state, stage] < candidate[stage]
        if better:
            if kept < state:
                clocks[kept] = clocks[state]
                links[kept] = links[state]
            kept += 1
    return kept


@kernel_part
def _least_promising(relaxation: Relaxation, clocks_KM: Array, begin: int, end: int, following: int) -> int:
    """The state that ends last by the bounds; of several the one with the latest clocks."""
    place = begin
    latest = total = -1.0
    for state in range(begin, end):
        promised = _end_at_least(relaxation, clocks_KM[state], 0, following)
        if promised > latest or (promised == latest and clocks_KM[state].sum() > total):
            place, latest, total = state, promised, clocks_KM[state].sum()
    return place


@kernel_part
def _trace_back(states: _States, begin: int, end: int, layers: int) -> Indices:
    """The bounds of the groups that lead to the first to end of the states `begin` to `end`."""
    if begin == end:
        return np.zeros(1, dtype=np.int64)
    bounds = np.empty(layers + 1, dtype=np.int64)
    bounds[layers] = layers
    place = layers
    state = begin + np.argmin(states.clocks[begin:end, -1])
    while bounds[place] > 0:
        place -= 1
        bounds[place] = states.links[state, 1]
        state = states.links[state, 0]
    return bounds[place:].copy()


def warm_up() -> None:
    """Compile these kernels, or load them from the disk cache, so that the first plan does not wait."""
    pipeline = Pipeline(np.ones((1, 1, 1)), np.array([0.0, 1.0]), False, 0.0)
    run_pipeline(pipeline, np.array([0, 1]), np.empty((1, 2, 1)))
    relaxation = relax(pipeline, 1)
    allow_group(pipeline, relaxation, 1)
    search(pipeline, relaxation, 9.0, 1, 1)
