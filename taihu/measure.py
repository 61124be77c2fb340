"""Measured values as the results show them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["spread"]


def spread(values: Sequence[float]) -> dict[str, float]:
    """`{"min", "median", "max"}` of at least one value."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}
