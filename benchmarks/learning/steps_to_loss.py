"""Steps that runs have taken to a common loss, from the rows that `torch_time_to_loss` keeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from benchmarks.base.curves import first_at

__all__ = ["DENSE", "FAST", "FP16", "WINDOW", "goal_of", "learning", "steps_to"]

DENSE: Final = "DDP"
FP16: Final = "DDP, fp16 hook"
"""Its losses are those of the dense one."""
FAST: Final = 10e9
"""Bits per second of the links over which runs learn; over others they are timed."""
WINDOW: Final = 10
"""Steps between two points of a curve."""
_GOAL: Final = 0.8


def learning(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of runs that learn."""
    return [row for row in rows if row["rate_bits"] == FAST]


def steps_to(rows: Sequence[dict[str, Any]], task: str, way: str, goal: float) -> tuple[float, float] | None:
    """The fewest steps to a loss, and the multiple of the usual rate that takes them; None where none gets there."""
    way = DENSE if way == FP16 else way
    curves = {row["factor"]: row["losses"] for row in rows if (row["task"], row["way"]) == (task, way)}
    reached = {factor: first_at(list(accumulate(curve, min)), goal) for factor, curve in curves.items()}
    found = [(WINDOW * place, factor) for factor, place in reached.items() if place is not None]
    return min(found) if found else None


def goal_of(rows: Sequence[dict[str, Any]], task: str) -> float:
    """The best of the dense runs after 80 % of their steps."""
    curves = [row["losses"] for row in rows if (row["task"], row["way"]) == (task, DENSE)]
    return float(min(min(curve[: round(_GOAL * len(curve))]) for curve in curves))
