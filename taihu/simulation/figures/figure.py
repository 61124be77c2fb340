"""A figure of a paper as numbers: rows of the paper's and ours, and what a picture shows of them. Pure data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Figure", "Kind", "Panel", "Row", "Series"]

Kind = Literal["line", "dashes", "points", "bars", "range"]


@dataclass(frozen=True)
class Row:
    """One number of a paper and ours.

    Attributes:
        case: what it is of.
        paper: the paper's number, or the two that it lies between, of which the second may be infinite; empty where
            the paper has none.
        ours: by the simulator.
        term: explains a deviation.
        beside: a second number of ours, which the figure says more about.
    """

    case: str
    paper: tuple[float, ...]
    ours: float
    term: str = ""
    beside: float | None = None

    @property
    def deviation(self) -> float | None:
        """The share by which ours is above the paper's number, or outside of its two; None where it has none."""
        if not self.paper:
            return None
        nearest = min(max(self.ours, self.paper[0]), self.paper[-1])
        return self.ours / nearest - 1.0 if nearest else 0.0

    def to_json(self) -> dict[str, Any]:
        """The row of the results; a bound that is infinite is left to the writer of JSON, for whom it is null."""
        paper = self.paper[0] if len(self.paper) == 1 else list(self.paper) or None
        row = {"case": self.case, "paper": paper, "ours": self.ours, "deviation": self.deviation, "term": self.term}
        return row if self.beside is None else {**row, "beside": self.beside}

    def paper_as_text(self) -> str:
        """The paper's number as a table shows it."""
        if not self.paper:
            return "-"
        if math.isinf(self.paper[-1]):
            return f"at least {self.paper[0]:g}"
        return " to ".join(f"{each:g}" for each in self.paper)


@dataclass(frozen=True)
class Series:
    """Values in a panel, as one kind of mark: bars stand on those of the series before, a range is shaded over all x.

    `x` are numbers, or the names of bars; of a range `y` is its least and its most, and `x` is empty.
    """

    name: str
    x: Sequence[float | str]
    y: Sequence[float]
    kind: Kind = "line"


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a picture; `log` names those of x and y that are logarithmic."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure: what it shows, where its constants are from, its rows, and the panels of its picture.

    `beside` says what the second number of each row is, where there is one.
    """

    title: str
    constants: str
    rows: Sequence[Row]
    panels: Sequence[Panel] = ()
    beside: str = ""

    def to_json(self) -> dict[str, Any]:
        """The results of the figure."""
        return {
            "title": self.title,
            "constants": self.constants,
            **({"beside": self.beside} if self.beside else {}),
            "rows": [row.to_json() for row in self.rows],
            "panels": [asdict(panel) for panel in self.panels],
        }
