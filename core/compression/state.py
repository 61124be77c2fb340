"""State of a compression method between steps, and the ranges of the arena that share a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError
from taihu.core.model.layout import Layout
from taihu.core.planner.groups import Group
from taihu.core.traits.methods import UnitKind
from taihu.kernels.clip import scale
from taihu.kernels.selection.unit_select import Outcomes, Thresholds


@dataclass(frozen=True)
class Unit:
    """Elements [start, stop) of the arena are selected from with one threshold; they belong to `group`.

    `name` is that of the layer, or of the first and the last one.
    """

    start: int
    stop: int
    group: int
    name: str = field(default="", compare=False)

    @property
    def elements(self) -> int:
        """Number of values."""
        return self.stop - self.start


def units_of_plan(kind: UnitKind, layout: Layout, groups: Sequence[Group]) -> tuple[Unit, ...]:
    """The units of a plan in backward order: one for each layer or each group, or one for all.

    A unit without elements is left out.
    """
    units = (
        Unit(layout.offsets[first], layout.offsets[last + 1], index, _name(layout, first, last))
        for index, group in enumerate(groups)
        for first, last in _ranges(kind, group)
    )
    return tuple(unit for unit in units if unit.elements)


def _ranges(kind: UnitKind, group: Group) -> list[tuple[int, int]]:
    if kind == "layer":
        return [(layer, layer) for layer in range(group.first_layer, group.last_layer + 1)]
    return [(group.first_layer, group.last_layer)]


def _name(layout: Layout, first: int, last: int) -> str:
    names = [layout.layers[layer].name for layer in dict.fromkeys((first, last))]
    return " to ".join(names)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an update of several units at one step; arrays of shape (units,).

    The arrays are views, valid until the same units are updated again.

    Attributes:
        step: its number, from 1.
        units: that were updated.
        elements: int64, of each unit.
        kept: int64, how many entries the density asks for.
        selected: int64, how many are sent.
        used: int64, the updates for which the threshold had been used before.
        thresholds: fp32.
        drifts: fp64, the relative change of the threshold; NaN where it was not made anew, or is the first one.
        refreshed: whether it was made anew.
    """

    step: int
    units: tuple[Unit, ...]
    elements: NDArray[np.int64]
    kept: NDArray[np.int64]
    selected: NDArray[np.int64]
    used: NDArray[np.int64]
    thresholds: NDArray[np.float32]
    drifts: NDArray[np.float64]
    refreshed: NDArray[np.bool_]


def lowered(before: NDArray[np.float64], now: NDArray[np.float64]) -> NDArray[np.float32]:
    """The factors by which what was held back counts for no more at other rates; shape (n,).

    Error feedback is of updates, gradients times their rate (Zheng et al. 2019, algorithm 1). Rates of a warm-up are
    small because its gradients are large: held back and sent at the full rate they would do what it is to prevent.
    Where rates fall nothing changes: updates are to be small then.

    Args:
        before: rates of the last update, shape (n,); -1 where one is not known.
        now: those of the update that comes.
    """
    rises = (before >= 0.0) & (now > before)
    return np.divide(before, now, out=np.ones_like(now), where=rises).astype(np.float32)


@dataclass
class CompressionState:
    """The memory of one worker's compression, changed in place by `update`.

    Attributes:
        units: ranges with a threshold each.
        residual: shape (n,), fp32: what has not been sent yet, in units of the gradient (with momentum on the
            workers, of the velocity). It is not scaled when the learning rate changes: what was held back at the old
            rate is applied at the new one.
        velocity: shape (n,), fp32, or of length 0 when momentum is not applied here.
        table: the threshold of each unit, its age, and what it was made for.
        outcomes: of the last update of each unit.
        steps: shape (units,), fp32: of the last update's values of each unit, where they have a few bits.
        squares: shape (2, units), fp64: the squared norm of each unit's gradient at its last even and odd step, where
            the whole gradient is clipped.
        rates: shape (units,), fp64: the learning rate of each unit's last update, -1 where that is not known.
    """

    units: tuple[Unit, ...]
    residual: NDArray[np.float32]
    velocity: NDArray[np.float32]
    table: Thresholds = field(init=False)
    outcomes: Outcomes = field(init=False)
    steps: NDArray[np.float32] = field(init=False)
    squares: NDArray[np.float64] = field(init=False)
    rates: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        units, self.units = self.units, ()
        self._make(units)

    @property
    def thresholds(self) -> NDArray[np.float32]:
        """Shape (units,), fp32; the threshold of each unit."""
        return self.table.values

    @property
    def ages(self) -> NDArray[np.int64]:
        """Shape (units,), int64; updates since the threshold was made, -1 before the first one."""
        return self.table.ages

    @property
    def kept(self) -> NDArray[np.int64]:
        """Shape (units,), int64; how many entries the threshold was made for."""
        return self.table.made_for

    def rebind(self, units: Sequence[Unit]) -> None:
        """Go on with other units: residual and velocity stay, and the thresholds of units that are there still."""
        places = {(unit.start, unit.stop): place for place, unit in enumerate(self.units)}
        before, squares, rates = self.table, self._sums_of_squares(), self.rates
        self._make(tuple(units))
        self._take_squares(squares)
        self._take_rates(before.bounds, rates)
        for place, unit in enumerate(self.units):
            if (old := places.get((unit.start, unit.stop))) is not None:
                self.table.values[place] = before.values[old]
                self.table.ages[place] = before.ages[old]
                self.table.made_for[place] = before.made_for[old]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that outlasts a step, by name, live views but for `squares`, shape (2,), of all units together.

        `bounds`, shape (units, 2), says what each unit covers.
        """
        table: dict[str, NDArray[Any]] = {
            "bounds": self.table.bounds,
            "thresholds": self.thresholds,
            "ages": self.ages,
            "kept": self.kept,
            "rates": self.rates,
        }
        squares = self._sums_of_squares()
        return {"residual": self.residual, "velocity": self.velocity, **table, "squares": squares}

    def resume(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` gave; units that are others now begin with new thresholds.

        A velocity that nobody applies any more is left out: runs of before had one by default.

        Raises:
            CheckpointError: there is no velocity, and momentum is applied here now.
        """
        if len(self.velocity) and not len(arrays["velocity"]):
            raise CheckpointError(
                "no momentum was applied before gradients were selected: set compression.momentum_at = 'none' and "
                "optimizer.weight_decay = 0, as it was"
            )
        np.copyto(self.residual, arrays["residual"])
        if len(self.velocity):
            np.copyto(self.velocity, arrays["velocity"])
        if "squares" in arrays:
            self._take_squares(arrays["squares"])
        if "rates" in arrays:
            self._take_rates(arrays["bounds"], arrays["rates"])
        places = {tuple(bounds): place for place, bounds in enumerate(arrays["bounds"].tolist())}
        for place, unit in enumerate(self.units):
            if (old := places.get((unit.start, unit.stop))) is not None:
                self.thresholds[place] = arrays["thresholds"][old]
                self.ages[place] = arrays["ages"][old]
                self.kept[place] = arrays["kept"][old]

    def follow(self, units: range, rates: NDArray[np.float64]) -> None:
        """Have what is held back of neighbouring units count no more than it did, where their learning rates rise.

        Args:
            units: indices of the units.
            rates: shape (len(units),): of the update that comes, -1 where that is not known.
        """
        part = slice(units.start, units.stop)
        factors = lowered(self.rates[part], rates)
        self.rates[part] = rates
        for place in np.flatnonzero(factors != 1.0).tolist():
            unit = self.units[units.start + place]
            scale(self.residual[unit.start : unit.stop], factors[place])

    def rate_at(self, element: int) -> float:
        """The learning rate of the last update of the unit that has an element, -1 where that is not known."""
        return _rate_at(element, self.table.bounds, self.rates)

    def norm_before(self, step: int) -> float:
        """The norm of the whole gradient of the step before `step`, 0 where that is not known."""
        return math.sqrt(math.fsum(self.squares[(step - 1) % 2]))

    def outcome(self, step: int, units: range) -> Outcome:
        """The outcome of the last update of these units."""
        part = slice(units.start, units.stop)
        bounds, (kept, selected, used, drifts, refreshed) = self.table.bounds[part], self.outcomes
        return Outcome(
            step=step,
            units=self.units[part],
            elements=bounds[:, 1] - bounds[:, 0],
            kept=kept[part],
            selected=selected[part],
            used=used[part],
            thresholds=self.table.values[part],
            drifts=drifts[part],
            refreshed=refreshed[part],
        )

    def _sums_of_squares(self) -> NDArray[np.float64]:
        """Rounded once, so that the order of units does not matter."""
        return np.array([math.fsum(row) for row in self.squares])

    def _take_squares(self, squares: NDArray[np.float64]) -> None:
        """Squared norms of the gradient that other units had: the next update of each writes over its own."""
        self.squares[:, :1] = squares.reshape(2, 1)

    def _take_rates(self, bounds: NDArray[np.int64], rates: NDArray[np.float64]) -> None:
        """Go on from the rates of other units, with `bounds` of shape (n, 2): each from that of the one before it."""
        for place, unit in enumerate(self.units):
            self.rates[place] = _rate_at(unit.start, bounds, rates)

    def _make(self, units: tuple[Unit, ...]) -> None:
        count = len(units)
        self.steps = np.zeros(count, dtype=np.float32)
        self.squares = np.zeros((2, count))
        self.rates = np.full(count, -1.0)
        self.units = units
        self.table = Thresholds(
            bounds=np.array([(unit.start, unit.stop) for unit in units], dtype=np.int64).reshape(-1, 2),
            values=np.zeros(count, dtype=np.float32),
            ages=np.full(count, -1, dtype=np.int64),
            made_for=np.zeros(count, dtype=np.int64),
        )
        self.outcomes = Outcomes(
            kept=np.zeros(count, dtype=np.int64),
            selected=np.zeros(count, dtype=np.int64),
            used=np.zeros(count, dtype=np.int64),
            drifts=np.full(count, np.nan),
            refreshed=np.zeros(count, dtype=np.bool_),
        )


def _rate_at(element: int, bounds: NDArray[np.int64], rates: NDArray[np.float64]) -> float:
    (found,) = np.nonzero((bounds[:, 0] <= element) & (element < bounds[:, 1]))
    return float(rates[found[0]]) if len(found) else -1.0
