"""The balance of one selection: what was owed before, and what is sent and kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from taihu.core.compression.methods import Compressor
    from taihu.core.compression.state import CompressionState

Values = NDArray[np.float32]


@dataclass(frozen=True)
class Weighed:
    """The residual of neighbouring elements around a selection; arrays of shape (n,), fp32.

    Attributes:
        before: the residual before the step.
        owed: what counts of it now, after it was added, with nothing sent.
        after: the residual behind the selection.
        together: that, and what is sent, added.
        rounded: whether what is sent was rounded.
        sent: what is sent, among zeros.
    """

    before: Values
    owed: Values
    after: Values
    together: Values
    sent: Values
    rounded: bool


class Weighing:
    """Copies of the residual and velocity of elements [start, stop) before a selection, for its balance.

    What is owed is computed by the kernel that selects, which sees no threshold: its fused operations round in their
    own way.
    """

    def __init__(self, compressor: Compressor, state: CompressionState, start: int, stop: int) -> None:
        self._compressor, self._state = compressor, state
        self._range = slice(start, stop)
        self._before = state.residual[start:stop].copy()
        self._velocity = state.velocity[start:stop].copy()
        self._counts = self._before

    def follows(self) -> None:
        """The residual was lowered for a learning rate that has risen."""
        self._counts = self._state.residual[self._range].copy()

    def weighed(self, gradient: Values, parameters: Values, indices: NDArray[np.int32], sent: Values) -> Weighed:
        """The balance behind the selection of what is `sent` at `indices`.

        Args:
            gradient: shape (elements,), the arena as the selection left it.
            parameters: shape (elements,), the arena.
            indices: shape (k,), places in the arena.
            sent: shape (k,), as who receives it decodes it.
        """
        owed = self._counts.copy()
        self._compressor.accumulate(gradient[self._range], parameters[self._range], self._velocity, owed)
        after = self._state.residual[self._range].copy()
        places = indices - np.int32(self._range.start)
        alone, together = np.zeros_like(after), after.copy()
        alone[places] = sent
        together += alone
        rounded = self._compressor.value_type != "fp32"
        return Weighed(self._before, owed, after, together, alone, rounded)
