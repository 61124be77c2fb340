"""One update of many ranges of an arena, each with a threshold of its own (docs/methods.md section 1.1).

A range is a unit: a layer, merged layers, or the whole model. All units of a group are updated by one call, so that
what a call costs is paid once for each message and not once for each layer.

U units; arrays over them have shape (U,). Arenas are fp32 of shape (n,), n < 2**31. The kernel releases the GIL, and
allocates nothing that grows with n or U.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.selection.select import accumulate_select, kth_largest, momentum_select, put_back, select, take

Values = NDArray[np.float32]
Counts = NDArray[np.int64]


class Arenas(NamedTuple):
    """Gradient and parameters, which are read, velocity (of length 0 without momentum) and residual, which change."""

    gradient: Values
    parameters: Values
    velocity: Values
    residual: Values


class Thresholds(NamedTuple):
    """The units and their thresholds, which are changed in place.

    Attributes:
        bounds: shape (U, 2), int64: start and stop of each unit, which is not empty.
        values: fp32, the thresholds.
        ages: int64, updates since the threshold was made, -1 before the first one.
        made_for: int64, how many entries the threshold was made for.
    """

    bounds: Counts
    values: Values
    ages: Counts
    made_for: Counts


class Outcomes(NamedTuple):
    """The last update of each unit.

    Attributes:
        kept: int64, how many entries the density asks for.
        selected: int64, how many are sent.
        used: int64, the updates for which the threshold had been used before this one.
        drifts: fp64, the relative change of the threshold; NaN where it was not made anew, or is the first one.
        refreshed: whether it was made anew.
    """

    kept: Counts
    selected: Counts
    used: Counts
    drifts: NDArray[np.float64]
    refreshed: NDArray[np.bool_]


class Rule(NamedTuple):
    """One update of units.

    Attributes:
        share: of entries that is kept.
        refresh_every: updates between exact thresholds.
        slack: a reused threshold may select that share more or less than the density asks for, however many where it
            is inf, before it is made anew.
        momentum, weight_decay, nesterov: of `momentum_select`.
    """

    share: float
    refresh_every: int
    slack: float
    momentum: float
    weight_decay: float
    nesterov: bool


@kernel
def most_of(elements: int, kept: int, slack: float) -> int:
    """No update selects more of a unit of so many elements, of which the density asks for `kept`."""
    if slack * kept >= elements:  # as inf is
        return elements
    return min(elements, kept + max(1, int(slack * kept)))


@kernel
def select_units(  # noqa: PLR0917 - arenas, units, what became of them, a range of units, a rule, two outputs
    arenas: Arenas,
    thresholds: Thresholds,
    outcomes: Outcomes,
    first: int,
    last: int,
    rule: Rule,
    indices: NDArray[np.int32],
    values: Values,
) -> int:
    """Take in the gradients of the units `first` to `last - 1`, which ascend, and select what is sent of them now.

    Args:
        arenas: of which the residual changes everywhere, whatever is selected.
        thresholds: of all units.
        outcomes: of all units, out.
        first: the first unit.
        last: the one behind the last.
        rule: of the update.
        indices: shape (m,), out: the selected positions in the arena, ascending.
        values: shape (m,), out: the entries at these positions, moved there from the residual, where zeros remain. If
            its shape is (0,), they stay.

    Returns:
        How many entries are selected: of each unit `most_of` at most, and as many as there is room for.
    """
    stop = 0
    for unit in range(first, last):
        start, end = thresholds.bounds[unit, 0], thresholds.bounds[unit, 1]
        kept = min(end - start, max(1, int(np.ceil(rule.share * (end - start)))))
        most = most_of(end - start, kept, rule.slack)
        least = kept - int(min(rule.slack, 1.0) * kept)
        room = indices[stop : min(stop + most, len(indices))]
        moved = values[stop : stop + len(room)] if len(values) else values
        before, age = np.float64(thresholds.values[unit]), thresholds.ages[unit]
        stale = age < 0 or age + 1 >= rule.refresh_every or kept != thresholds.made_for[unit]
        hits = _accumulate(arenas, start, end, np.inf if stale else before, rule, room, moved)
        # Nothing holds a reused threshold to the density: the count may leave its bounds before the refresh is due.
        refresh = stale or not least <= hits <= most
        outcomes.drifts[unit] = np.nan
        if refresh:
            residual = arenas.residual[start:end]
            back = min(hits, len(moved))
            put_back(residual, room[:back], moved[:back])
            threshold = np.float64(kth_largest(residual, kept))
            hits = select(residual, threshold, room)
            if len(values):
                count = min(hits, len(room))
                take(residual, room[:count], moved[:count])
            if age >= 0 and before > 0:
                outcomes.drifts[unit] = abs(threshold - before) / before
            thresholds.values[unit] = threshold
            thresholds.made_for[unit] = kept
        count = min(hits, len(room))
        _shift(room[:count], start)
        thresholds.ages[unit] = 0 if refresh else age + 1
        outcomes.kept[unit] = kept
        outcomes.selected[unit] = count
        outcomes.used[unit] = age + 1
        outcomes.refreshed[unit] = refresh
        stop += count
    return stop


@kernel_part
def _accumulate(  # noqa: PLR0917 - arenas, a range, a threshold, a rule, two outputs
    arenas: Arenas,
    start: int,
    end: int,
    threshold: float,
    rule: Rule,
    room: NDArray[np.int32],
    moved: Values,
) -> int:
    gradient, residual = arenas.gradient[start:end], arenas.residual[start:end]
    if not len(arenas.velocity):
        return accumulate_select(gradient, residual, threshold, room, moved)
    return momentum_select(
        gradient,
        arenas.parameters[start:end],
        arenas.velocity[start:end],
        residual,
        threshold,
        room,
        moved,
        rule.momentum,
        rule.weight_decay,
        rule.nesterov,
        1.0,
    )


@kernel_part
def _shift(indices: NDArray[np.int32], by: int) -> None:
    for j in range(len(indices)):
        indices[j] += np.int32(by)
