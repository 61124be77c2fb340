"""Drift and age of the thresholds of a run: claim 5 of docs/methods.md section 1.4."""

from __future__ import annotations

from statistics import median

import numpy as np
from numpy.typing import NDArray

from taihu.core.compression import Outcome, Unit

_MOST_REFRESHES = 1 << 15
_BINS = 256
_LARGEST_SHARE = 4
_TOTALS = np.dtype(
    [
        ("elements", np.int64),
        ("updates", np.int64),
        ("refreshes", np.int64),
        ("selected", np.int64),
        ("kept", np.int64),
        ("last_drift", np.float64),
        ("most_drift", np.float64),
    ]
)
_REFRESH = np.dtype([("step", np.int64), ("unit", np.int64), ("age", np.int64), ("drift", np.float64)])


class CompressionLog:
    """Collects what every update reported; one thread adds.

    Memory is bounded: of a long run the refreshes of every so many-th step are kept, and counts of all.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._of_units: dict[tuple[str, int], NDArray[np.int64]] = {}
        self._totals = np.zeros(0, dtype=_TOTALS)
        self._refreshes = np.zeros(_MOST_REFRESHES, dtype=_REFRESH)
        self._noted = 0
        self._every = 1
        self._bins = np.zeros(_LARGEST_SHARE * _BINS + 1, dtype=np.int64)
        self._least, self._most = np.inf, -np.inf

    def add(self, outcome: Outcome) -> None:
        """Note one update of some units."""
        numbers = self._numbers_of(outcome.units)
        totals = self._totals
        totals["updates"][numbers] += 1
        totals["selected"][numbers] += outcome.selected
        totals["kept"][numbers] += outcome.kept
        shares = outcome.selected / outcome.kept
        np.add.at(self._bins, np.minimum((shares * _BINS).astype(np.int64), len(self._bins) - 1), 1)
        self._least, self._most = min(self._least, float(shares.min())), max(self._most, float(shares.max()))
        drifted = np.flatnonzero(outcome.drifts == outcome.drifts)  # a first threshold has no drift
        if len(drifted):
            numbers, drifts = numbers[drifted], outcome.drifts[drifted]
            totals["refreshes"][numbers] += 1
            totals["last_drift"][numbers] = drifts
            totals["most_drift"][numbers] = np.maximum(totals["most_drift"][numbers], drifts)
            self._note(outcome.step, numbers, outcome.used[drifted], drifts)

    def last_drifts(self) -> list[tuple[str, float]]:
        """The relative change of each unit's threshold when it was last made anew, as far as it has been."""
        totals = self._totals
        rows = zip(self._names, totals["refreshes"].tolist(), totals["last_drift"].tolist(), strict=False)
        return [(name, drift) for name, refreshes, drift in rows if refreshes]

    def results(self) -> dict[str, object] | None:
        """Results for `--json`: thresholds that were made anew, and the count over what the density asks for.

        `refreshes` are those of every `every`-th step: `unit` is the place in `units`, `age` the number of steps that
        the threshold before had been used for, `drift` its relative change. `units` has every layer, or group of
        layers, that shared a threshold, with what became of it in all steps; medians are those of `refreshes`. The
        median of `selected_per_kept` is rounded down to a 256th.
        """
        if not self._names:
            return None
        noted = self._refreshes[: self._noted]
        middle = int(np.searchsorted(np.cumsum(self._bins), (self._bins.sum() + 1) // 2))
        return {
            "selected_per_kept": {"min": self._least, "median": middle / _BINS, "max": self._most},
            "refreshes": {"every": self._every, **{name: noted[name].tolist() for name in _REFRESH.names or ()}},
            "units": [self._unit(number, noted) for number in range(len(self._names))],
        }

    def _unit(self, number: int, noted: NDArray[np.void]) -> dict[str, object]:
        elements, updates, refreshes, selected, kept, _, most = self._totals[number].item()
        drifts = noted["drift"][noted["unit"] == number].tolist()
        return {
            "name": self._names[number],
            "elements": elements,
            "updates": updates,
            "refreshes": refreshes,
            "median_drift": median(drifts) if drifts else None,
            "largest_drift": most if refreshes else None,
            "selected_per_kept": selected / kept,
        }

    def _numbers_of(self, units: tuple[Unit, ...]) -> NDArray[np.int64]:
        key = units[0].name, len(units)  # Neighbours: there are no others that begin so.
        known = self._of_units.get(key)
        if known is None:
            known = self._of_units[key] = np.array([self._number(unit) for unit in units], dtype=np.int64)
        return known

    def _number(self, unit: Unit) -> int:
        number = self._numbers.get(unit.name)
        if number is None:
            number = self._numbers[unit.name] = len(self._names)
            self._totals = np.append(self._totals, np.zeros(1, dtype=_TOTALS))
            self._totals["elements"][number] = unit.elements
            self._names.append(unit.name)
        return number

    def _note(
        self, step: int, numbers: NDArray[np.int64], used: NDArray[np.int64], drifts: NDArray[np.float64]
    ) -> None:
        if step % self._every:
            return
        if self._noted + len(numbers) > len(self._refreshes):
            self._thin()
            self._note(step, numbers, used, drifts)
            return
        part = self._refreshes[self._noted : self._noted + len(numbers)]
        part["step"], part["unit"], part["age"], part["drift"] = step, numbers, used, drifts
        self._noted += len(numbers)

    def _thin(self) -> None:
        self._every *= 2
        stay = self._refreshes[: self._noted]
        stay = stay[stay["step"] % self._every == 0]
        self._refreshes[: len(stay)] = stay
        self._noted = len(stay)
