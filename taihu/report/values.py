"""Values of files that anybody may have written, and texts for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

_LONGEST: Final = 300
_LARGEST: Final = 1e18


def _at(data: object, path: Sequence[str | int]) -> object:
    for key in path:
        found: object = None
        if isinstance(data, Mapping):
            found = data.get(key)
        elif isinstance(data, list | tuple) and isinstance(key, int) and 0 <= key < len(data):
            found = data[key]
        data = found
    return data


def number(data: object, *path: str | int) -> float | None:
    """The number at a path of keys; None where there is none, or one that nothing measured can be.

    What is too small to be drawn beside anything is 0.
    """
    found = _at(data, path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        value = float(found)
    except OverflowError:
        return None
    if not abs(value) <= _LARGEST:
        return None
    return value if abs(value) >= 1 / _LARGEST else 0.0


def text(data: object, *path: str | int) -> str:
    """The text at a path of keys, shortened; "" where there is none."""
    found = _at(data, path)
    if not isinstance(found, str):
        return ""
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."


def items(data: object, *path: str | int) -> list[Any]:
    """The list at a path of keys; empty where there is none."""
    found = _at(data, path)
    return list(found) if isinstance(found, list | tuple) else []


def known(values: Sequence[float | None]) -> list[float]:
    """Those values that there are."""
    return [value for value in values if value is not None]


@dataclass(frozen=True)
class Unit:
    """A unit of measure: its sizes in descending order, each with what stands behind a number of them."""

    sizes: tuple[tuple[float, str], ...]
    digits: int = 3

    def size_for(self, largest: float) -> tuple[float, str]:
        """The size in which a value like `largest` is best told."""
        fitting = (size for size in self.sizes if abs(largest) >= size[0])
        return next(fitting, self.sizes[-1])

    def text(self, value: float | None) -> str:
        """A value with three digits in the size that suits it; a dash where there is none."""
        if value is None:
            return "-"
        # Nothing is told in the unit itself, where there is one.
        size, suffix = self.size_for(value or 1.0)
        return f"{digits(value / size, self.digits)}{suffix}"


def digits(value: float, count: int = 3) -> str:
    """A number with so many significant digits, without an exponent where it can be read without."""
    if value and not 1e-4 <= abs(value) < 1e15:
        mantissa, _, power = f"{value:.{count - 1}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    if abs(value) >= 10 ** (count - 1):
        return f"{value:,.0f}"
    return f"{value:.{count}g}"


# A no-break space: a number and its unit stay on one line.
SECONDS: Final = Unit(((1.0, "\xa0s"), (1e-3, "\xa0ms"), (1e-6, "\xa0µs"), (1e-9, "\xa0ns")))
BYTES: Final = Unit(((1e12, "\xa0TB"), (1e9, "\xa0GB"), (1e6, "\xa0MB"), (1e3, "\xa0kB"), (1.0, "\xa0B")))
SHARE: Final = Unit(((1e-2, "\xa0%"),), 4)
NUMBER: Final = Unit(((1.0, ""),), 4)


@dataclass(frozen=True)
class Bin:
    """Neighbouring rows of a table that are shown as one: `start` to `stop`, which is not included."""

    start: int
    stop: int


def bins_of(count: int, most: int) -> list[Bin]:
    """At most so many bins of nearly equal size for `count` rows; each row is one of its own where there is room."""
    bins = min(count, most)
    edges = [count * place // bins for place in range(bins + 1)] if bins else [0]
    return [Bin(start, stop) for start, stop in pairwise(edges)]


def binned(values: Sequence[float | None], bins: Sequence[Bin]) -> tuple[float | None, ...]:
    """The median of each bin; None where it has no value."""
    found = (known(values[each.start : each.stop]) for each in bins)
    return tuple(median(each) if each else None for each in found)
