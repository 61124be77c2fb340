"""Selections: how a method takes from the gradients what is sent of them now."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.compression.state import CompressionState
from taihu.kernels.selection.select import accumulate_select, momentum_select, take_all
from taihu.kernels.selection.unit_select import Arenas, Rule, select_units


class Select(Protocol):
    """The selection of a method; different threads may select from different units at the same time."""

    def __call__(  # noqa: PLR0917 - what one selection takes
        self,
        state: CompressionState,
        units: range,
        step: int,
        arenas: Arenas,
        rule: Rule,
        indices: NDArray[np.int32],
        values: NDArray[Any],
    ) -> int:
        """Add the gradients of neighbouring units to the residual, with momentum, and take what is sent out of it.

        Args:
            state: `state.outcomes` gets what became of these units: `kept`, `selected`, and whatever there is to say.
            units: indices of the units in `state.units`, one after the other.
            step: number of this step, from 1.
            arenas: gradients and parameters, which are read, velocity and residual, which change.
            rule: the share that is kept of each unit, and the momentum.
            indices: gets ascending positions in the arena.
            values: gets the values there, which the residual has no more; of length 0 where they stay for a while.

        Returns:
            How many were selected: of each unit at most what `Compressor.most_selected` says.
        """
        ...


def by_threshold(  # noqa: PLR0917 - as above
    state: CompressionState,
    units: range,
    step: int,
    arenas: Arenas,
    rule: Rule,
    indices: NDArray[np.int32],
    values: NDArray[Any],
) -> int:
    """The largest magnitudes of each unit, by its threshold (docs/methods.md 1.1); one kernel for all units."""
    return select_units(arenas, state.table, state.outcomes, units.start, units.stop, rule, indices, values)


def everything(  # noqa: PLR0917 - as above
    state: CompressionState,
    units: range,
    step: int,
    arenas: Arenas,
    rule: Rule,
    indices: NDArray[np.int32],
    values: NDArray[Any],
) -> int:
    """All values of each unit."""
    first, last = state.units[units[0]], state.units[units[-1]]
    own = Arenas(*(array[first.start : last.stop] for array in arenas))
    accumulate(own, rule)
    take_all(own.residual, first.start, indices, values)
    for number in units:
        state.outcomes.kept[number] = state.outcomes.selected[number] = state.units[number].elements
    return len(own.residual)


def accumulate(arenas: Arenas, rule: Rule) -> None:
    """Add gradients to the residual, with momentum where there is a velocity, and take nothing out of it.

    Args:
        arenas: each of shape (n,), the velocity of length 0 where the servers apply momentum; it changes, too.
        rule: its momentum, weight decay and Nesterov's form.
    """
    places, moved = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32)
    gradient, parameters, velocity, residual = arenas
    if not len(velocity):
        accumulate_select(gradient, residual, np.inf, places, moved)
        return
    momentum = (rule.momentum, rule.weight_decay, rule.nesterov, 1.0)
    momentum_select(gradient, parameters, velocity, residual, np.inf, places, moved, *momentum)
