"""Random-k (Stich et al. 2018, section 2): of every layer a share of its values, drawn anew in every step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.compression.methods import kept_elements
from taihu.core.compression.selecting import accumulate
from taihu.core.compression.state import CompressionState
from taihu.core.traits.methods import Method
from taihu.kernels.selection.unit_select import Arenas, Rule

METHOD = Method("random-k", selects=True, unit="layer", selection=f"{__name__}:select")


def select(  # noqa: PLR0917 - what one selection takes
    state: CompressionState,
    units: range,
    step: int,
    arenas: Arenas,
    rule: Rule,
    indices: NDArray[np.int32],
    values: NDArray[Any],
) -> int:
    """All workers draw the same positions, so that what comes back is no more than what one of them sent."""
    count = 0
    for number in range(units.start, units.stop):
        unit = state.units[number]
        part = slice(unit.start, unit.stop)
        accumulate(Arenas(*(array[part] for array in arenas)), rule)
        kept = kept_elements(rule.share, unit.elements)
        drawn = np.random.default_rng((step, unit.start)).choice(unit.elements, kept, replace=False)
        own = indices[count : count + kept]
        own[:] = unit.start + np.sort(drawn)
        if len(values):
            values[count : count + kept] = arenas.residual[own]
            arenas.residual[own] = 0.0
        state.outcomes.kept[number] = state.outcomes.selected[number] = kept
        count += kept
    return count
