"""State of a compression method between steps, and the ranges of the arena that share a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from taihu.layout import Layout
from taihu.planner.groups import Group

__all__ = ["CompressionState", "Unit", "UnitKind", "UnitReport", "units_of_plan"]

UnitKind = Literal["model", "layer", "group"]


@dataclass(frozen=True)
class Unit:
    """Elements [start, stop) of the arena are selected from with one threshold; they belong to `group`."""

    start: int
    stop: int
    group: int

    @property
    def elements(self) -> int:
        """Number of values."""
        return self.stop - self.start


def units_of_plan(kind: UnitKind, layout: Layout, groups: Sequence[Group]) -> tuple[Unit, ...]:
    """The units of a plan in backward order: one for each layer or each group, or one for all.

    A unit without elements is left out.
    """
    bounds = [
        (layout.offsets[first], layout.offsets[last + 1], index)
        for index, group in enumerate(groups)
        for first, last in _ranges(kind, group)
    ]
    return tuple(Unit(start, stop, index) for start, stop, index in bounds if start < stop)


def _ranges(kind: UnitKind, group: Group) -> list[tuple[int, int]]:
    if kind == "layer":
        return [(layer, layer) for layer in range(group.first_layer, group.last_layer + 1)]
    return [(group.first_layer, group.last_layer)]


@dataclass(frozen=True, slots=True)
class UnitReport:
    """The outcome of one update of one unit at one step.

    `drift` is the relative change of the threshold, NaN where it was not made anew; `age` is the number of steps for
    which the threshold had been used before.
    """

    step: int
    unit: int
    age: int
    elements: int
    kept: int
    selected: int
    threshold: float
    drift: float
    refreshed: bool


@dataclass
class CompressionState:
    """The memory of one worker's compression, changed in place by `update`.

    Attributes:
        units: ranges with a threshold each.
        residual: shape (n,), fp32: what has not been sent yet, in units of the gradient (with momentum on the
            workers, of the velocity). It is not scaled when the learning rate changes: what was held back at the old
            rate is applied at the new one.
        velocity: shape (n,), fp32, or of length 0 when momentum is not applied here.
        thresholds: shape (units,), fp32; the threshold of each unit.
        ages: shape (units,), int64; updates since the threshold was made, -1 before the first one.
        kept: shape (units,), int64; how many elements the threshold was made for.
    """

    units: tuple[Unit, ...]
    residual: NDArray[np.float32]
    velocity: NDArray[np.float32]
    thresholds: NDArray[np.float32] = field(init=False)
    ages: NDArray[np.int64] = field(init=False)
    kept: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.rebind(self.units)

    def rebind(self, units: Sequence[Unit]) -> None:
        """Go on with other units: residual and velocity stay, thresholds are made anew."""
        self.units = tuple(units)
        self.thresholds = np.zeros(len(self.units), dtype=np.float32)
        self.ages = np.full(len(self.units), -1, dtype=np.int64)
        self.kept = np.zeros(len(self.units), dtype=np.int64)
