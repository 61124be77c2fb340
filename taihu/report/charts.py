"""Figures as data: what is drawn, before anybody knows how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taihu.report.values import Unit

Colour = str
"""A class of page.css: blue, orange, purple, teal, gold, red, grey."""


@dataclass(frozen=True)
class Series:
    """A value for each place of a chart, None where there is none; `joined` draws a line on over such gaps."""

    name: str
    values: tuple[float | None, ...]
    colour: Colour
    dashed: bool = False
    joined: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Lines:
    """Lines and, below them, areas upon each other, over numbers that ascend.

    Attributes:
        over: the name of those numbers.
        places: the numbers.
        names: the text of each place.
        unit: of all values.
        is_log: whether the axis of values is logarithmic, where all of them are positive.
        from_zero: whether that axis begins with 0.
        is_even: whether places stand at even distances, each with its name, and not by their numbers.
    """

    over: str
    places: tuple[float, ...]
    names: tuple[str, ...]
    unit: Unit
    lines: tuple[Series, ...] = ()
    areas: tuple[Series, ...] = ()
    is_log: bool = False
    from_zero: bool = True
    is_even: bool = False

    @property
    def series(self) -> tuple[Series, ...]:
        """All of them."""
        return (*self.areas, *self.lines)


@dataclass(frozen=True)
class Bars:
    """A bar for each name, of parts one after the other; `marks` are strokes across the bars."""

    what: str
    names: tuple[str, ...]
    unit: Unit
    parts: tuple[Series, ...]
    marks: tuple[Series, ...] = ()

    @property
    def series(self) -> tuple[Series, ...]:
        """All of them."""
        return (*self.parts, *self.marks)


@dataclass(frozen=True)
class Span:
    """Something that went on from `start` to `stop`, in seconds; `about` says of what."""

    name: str
    start: float
    stop: float
    colour: Colour
    about: str = ""


@dataclass(frozen=True)
class Track:
    """A row of a timeline, of some process."""

    process: str
    name: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Timeline:
    """Tracks over `seconds` from 0 on."""

    tracks: tuple[Track, ...]
    seconds: float


Chart = Lines | Bars | Timeline


@dataclass(frozen=True)
class Table:
    """Rows of texts; the first `left` columns begin at one place, the others are numbers and end at one."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@dataclass(frozen=True)
class Figure:
    """A chart, or a table alone, with what there is to say about it."""

    title: str
    shown: Chart | Table
    note: str = ""


@dataclass(frozen=True)
class Missing:
    """A thing that a run has not measured, and how to get it."""

    what: str
    how: str


@dataclass(frozen=True)
class Section:
    """Figures of one subject."""

    key: str
    title: str
    figures: Sequence[Figure]


def plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", left: int = 1) -> Figure:
    """A figure that is a table."""
    return Figure(title, Table(tuple(columns), tuple(tuple(row) for row in rows), left), note)
