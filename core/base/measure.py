"""Measured values as the results show them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

_FEWEST: Final = 5
_DEVIATIONS: Final = 8.0
_LEAST_S: Final = 1.0


def spread(values: Sequence[float]) -> dict[str, float]:
    """`{"min", "median", "max"}` of at least one value."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def late_after(seconds: Sequence[float]) -> float:
    """The time after which what took these `seconds` so far is late: median + 8 MAD, at least a second above it.

    0 while there are fewer than five. MAD is the median absolute deviation from the median.
    """
    if len(seconds) < _FEWEST:
        return 0.0
    middle = statistics.median(seconds)
    deviation = statistics.median(abs(each - middle) for each in seconds)
    return middle + max(_LEAST_S, _DEVIATIONS * deviation)
