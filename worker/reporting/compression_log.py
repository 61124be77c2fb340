"""Drift and age of the thresholds of a run: claim 5 of docs/methods.md section 1.4."""

from __future__ import annotations

from array import array

from taihu.compression import UnitReport
from taihu.measure import spread

__all__ = ["CompressionLog"]


class CompressionLog:
    """Collects what every update reported; one thread adds, and reading comes after."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._units = array("q")
        self._ages = array("q")
        self._drifts = array("d")
        self._shares = array("d")

    def add(self, report: UnitReport) -> None:
        """Note one update of one unit."""
        self._shares.append(report.selected / report.kept)
        if report.drift == report.drift:  # a first threshold has no drift
            self._steps.append(report.step)
            self._units.append(report.unit)
            self._ages.append(report.age)
            self._drifts.append(report.drift)

    def results(self) -> dict[str, object] | None:
        """Results for `--json`: every threshold that was made anew, and the count over what the density asks for.

        `age` is the number of steps that the threshold before had been used for, `drift` its relative change.
        """
        if not self._shares:
            return None
        return {
            "selected_per_kept": spread(self._shares),
            "refreshes": {
                "step": list(self._steps),
                "unit": list(self._units),
                "age": list(self._ages),
                "drift": list(self._drifts),
            },
        }
