"""The norm of a whole gradient from its parts, summed exactly: the same bits wherever the parts are."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.clip import add_squares

_LANES: Final = 5
_LANE_BITS: Final = 30
# Squares below 2^-60 of that of the largest norm do not count.
_UNIT_BITS: Final = 30
# Sums of so small numbers are exact in fp32, of up to 4,096 workers.
_PIECE_BITS: Final = 12
_PIECES: Final = 6


class WholeNorm:
    """Collects parts of a gradient that is to have at most the norm `largest`.

    Args:
        largest: of what is applied.
        scale: what the parts are multiplied by when they are applied: 1 / workers for a sum of their gradients.
    """

    def __init__(self, largest: float, scale: float) -> None:
        self._largest = largest / scale
        exponent = math.frexp(self._largest)[1]
        self._unit_root = math.ldexp(1.0, exponent - _UNIT_BITS)
        self._lanes = np.zeros(_LANES, np.int64)

    def add(self, values: NDArray[np.float32]) -> None:
        """Add a part, shape (n,), fp32; in any order."""
        add_squares(values, self._unit_root**2, self._lanes)

    def pieces(self) -> NDArray[np.float32]:
        """The sum so far as numbers, fp32, that are added up over the workers without rounding."""
        found = [int(lane) >> (_PIECE_BITS * piece) for lane in self._lanes for piece in range(_PIECES)]
        return np.array([piece & ((1 << _PIECE_BITS) - 1) for piece in found], np.float32)

    def replace(self, pieces: NDArray[np.float32]) -> None:
        """Go on with what `pieces` of all workers add up to."""
        numbers = iter(map(int, pieces.tolist()))
        for lane in range(_LANES):
            self._lanes[lane] = sum(next(numbers) << (_PIECE_BITS * piece) for piece in range(_PIECES))

    @property
    def norm(self) -> float:
        """The norm of what has been added; infinite where a value is no number, or 2^30 times the largest norm."""
        if self._lanes[-1]:
            return math.inf
        return (
            math.sqrt(sum(int(lane) << (_LANE_BITS * k) for k, lane in enumerate(self._lanes[:-1]))) * self._unit_root
        )

    @property
    def factor(self) -> float:
        """The factor of the gradient, 0 to 1, that brings its norm down to the largest."""
        norm = self.norm
        return 1.0 if norm <= self._largest else self._largest / norm
