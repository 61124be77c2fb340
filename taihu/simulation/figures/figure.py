"""A figure of a paper as numbers: rows of the paper's and ours, and what a picture shows of them. Pure data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["line", "dashes", "points", "bars", "range"]
Basis = Literal["predicted", "fitted", "bound", "definition", "in words", "not printed"]
"""The object of a comparison: a number that no constant of ours was chosen by; one that some were; a range that ours
is to be in; a count that follows from what is counted; words without a number; nothing, for want of a printed one."""


@dataclass(frozen=True)
class Row:
    """One number of a paper and ours.

    Attributes:
        case: what it is of.
        paper: the paper's number, or the two that it lies between, of which the second may be infinite; empty where
            the paper has none.
        ours: by the simulator.
        term: explains a deviation.
        beside: further numbers of ours, by the columns that the figure says more about.
        basis: what the comparison says.
        words: of the paper, where it has no number; ours agrees with them or not.
        agrees: with these words.
    """

    case: str
    paper: tuple[float, ...]
    ours: float
    term: str = ""
    beside: Mapping[str, float] = field(default_factory=dict)
    basis: Basis = field(kw_only=True)
    words: str = ""
    agrees: bool = True

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
        row |= {"basis": self.basis} | ({"words": self.words, "agrees": self.agrees} if self.words else {})
        return row | ({"beside": dict(self.beside)} if self.beside else {})

    def paper_as_text(self) -> str:
        """The paper's number as a table shows it."""
        if not self.paper:
            return self.words or "-"
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

    `beside` says what the further numbers of its rows are, by their columns.
    """

    title: str
    constants: str
    rows: Sequence[Row]
    panels: Sequence[Panel] = ()
    beside: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The results of the figure."""
        return {
            "title": self.title,
            "constants": self.constants,
            **({"beside": dict(self.beside)} if self.beside else {}),
            "rows": [row.to_json() for row in self.rows],
            "panels": [asdict(panel) for panel in self.panels],
        }
