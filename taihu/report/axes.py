"""Axes: the range that is shown, its ticks, and the place of a value on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from taihu.report.values import Unit, digits

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_FAR: Final = 3.0
_ROOM: Final = 1.25


@dataclass(frozen=True)
class Axis:
    """A range and its ticks, each with its text."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """The place of a value: 0 at the low end, 1 at the high one, beyond them outside."""
        if self.is_log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def usual_most(values: Sequence[float]) -> float:
    """The most of `values`, but for a few that are far beyond the others: of these charts say that they are there."""
    if not values:
        return 0.0
    ascending = sorted(values)
    usual = ascending[int(0.97 * (len(ascending) - 1))]
    return usual * _ROOM if ascending[-1] > _FAR * usual > 0 else ascending[-1]


def value_axis(low: float, high: float, unit: Unit, ticks: int = 5, *, whole: bool = False) -> Axis:
    """A linear axis that begins and ends with a tick.

    Args:
        low: the least value.
        high: the largest one.
        unit: of the values.
        ticks: about so many.
        whole: whether there is nothing between whole numbers.
    """
    if high <= low:
        high = low + (abs(low) * 0.1 or 1.0)
    size, suffix = unit.size_for(max(abs(low), abs(high)))
    step = _step((high - low) / size / max(1, ticks - 1), whole=whole)
    first, last = math.floor(low / size / step + 1e-9), math.ceil(high / size / step - 1e-9)
    places = [place * step for place in range(first, last + 1)]
    decimals = next((count for count in range(7) if math.isclose(round(step, count), step)), None)
    texts = [digits(place, 6) if decimals is None else f"{place:,.{decimals}f}" for place in places]
    return Axis(places[0] * size, places[-1] * size, _labelled(places, texts, size, suffix))


def _labelled(
    places: Sequence[float], texts: Sequence[str], size: float, suffix: str
) -> tuple[tuple[float, str], ...]:
    return tuple((place * size, f"{text}{suffix}") for place, text in zip(places, texts, strict=True))


def _step(rough: float, *, whole: bool) -> float:
    """The least step of the usual ones that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each for each in _STEPS if each * power >= rough * (1 - 1e-9)) * power
    return float(math.ceil(step)) if whole else step


def log_axis(low: float, high: float, unit: Unit) -> Axis:
    """A logarithmic axis from a power of ten to another, with a tick at each, or at every so-many-th; 0 < low."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    every = max(1, math.ceil((last - first) / 5))
    powers = [10.0**power for power in range(first, last + 1, every)]
    return Axis(10.0**first, 10.0**last, tuple((power, unit.text(power)) for power in powers), is_log=True)
