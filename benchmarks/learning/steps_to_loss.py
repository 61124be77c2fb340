"""Steps that runs have taken to a common loss, from the rows that `torch_time_to_loss` keeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from benchmarks.base.curves import first_at

__all__ = ["DENSE", "FAST", "FP16", "WINDOW", "best_factor", "goal_of", "learning", "steps_to"]

DENSE: Final = "DDP"
FP16: Final = "DDP, fp16 hook"
"""Its losses are those of the dense one."""
FAST: Final = 10e9
"""Bits per second of the links over which runs learn; over others they are timed."""
WINDOW: Final = 10
"""Steps between two points of a curve."""
_GOAL: Final = 0.8


def learning(rows: Sequence[dict[str, Any]], seed: int = 0) -> list[dict[str, Any]]:
    """The rows of runs that learn, from one seed."""
    return [row for row in rows if row["rate_bits"] == FAST and row.get("seed", 0) == seed]


def steps_to(rows: Sequence[dict[str, Any]], task: str, way: str, goal: float) -> tuple[float, float] | None:
    """The fewest steps to a loss, and the multiple of the usual rate that takes them; None where none gets there."""
    way = DENSE if way == FP16 else way
    curves = _curves(rows, task, way)
    reached = {factor: first_at(list(accumulate(curve, min)), goal) for factor, curve in curves.items()}
    found = [(WINDOW * place, factor) for factor, place in reached.items() if place is not None]
    return min(found) if found else None


def best_factor(rows: Sequence[dict[str, Any]], task: str, way: str) -> float:
    """The multiple of the usual rate by which a way comes the fastest to the loss, or the nearest."""
    found = steps_to(rows, task, way, goal_of(rows, task))
    curves = _curves(rows, task, way)
    return found[1] if found is not None else min(curves, key=lambda factor: min(curves[factor]))


def _curves(rows: Sequence[dict[str, Any]], task: str, way: str) -> dict[float, list[float]]:
    """The losses of a way by the multiple of the rate."""
    return {row["factor"]: row["losses"] for row in rows if (row["task"], row["way"]) == (task, way)}


def goal_of(rows: Sequence[dict[str, Any]], task: str) -> float:
    """The best of the dense runs after 80 % of their steps."""
    curves = _curves(rows, task, DENSE).values()
    return float(min(min(curve[: round(_GOAL * len(curve))]) for curve in curves))
