"""The table of the papers' figures in docs/simulation.md: `python -m benchmarks figures --help`.

It, and what figures say of the claims of docs/methods.md, is made of what `taihu simulate figure --all --json
benchmarks/results/figures.json` wrote; nothing is simulated here.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.rows import in_page

__all__ = ["SOURCE", "deviations", "simulated", "table"]

Rows = Sequence[Mapping[str, Any]]

_RESULTS: Final = Path("benchmarks/results/figures.json")
SOURCE: Final = "made by benchmarks.planning.figures"
_EQUAL: Final = 0.01
_WIDE: Final = 0.2
_BASES: Final = ("predicted", "fitted", "bound", "definition", "in words")
_MOST: Final = MappingProxyType({"predicted": _WIDE, "fitted": _WIDE, "bound": 0.0, "definition": _EQUAL})
_ROWS_OF: Final = MappingProxyType(
    {
        ("1.4", 1): "over dense",
        ("1.4", 3): "the fastest other's",
        ("1.4", 4): "LAGS",
        ("1.4", 6): "nothing of it",
        ("3", 1): "FC1",
        ("3", 2): "FC2",
        ("3", 3): "FC3",
        ("4", 1): "hide",
        ("4", 4): "(c), K=8: transfers over",
        ("6", 1): "172",
        ("6", 2): "the fastest",
    }
)
"""The part of the case that rows of a claim have, where not all of a figure are its."""


def table(results: Mapping[str, Any]) -> str:
    """The figures as Markdown: each comparison by what it is of, and the rows that fail, with their terms."""
    lines = ["| figure | rows that agree | failing, and by what |", "|---|---|---|"]
    return "\n".join([*lines, *(_line(name, figure) for name, figure in results["figures"].items())])


def simulated(results: Mapping[str, Any], section: str, number: int) -> tuple[str, str] | None:
    """The figure that shows a claim of docs/methods.md, and what it says in words; None where none does."""
    if (section, number) not in _TOLD:
        return None
    name, tell = _TOLD[section, number]
    return name, tell(results["figures"][name]["rows"])


def _ours(rows: Rows, *within: str, digits: int = 1) -> str:
    """Our numbers of those rows whose case has all these texts in it, in their order."""
    return ", ".join(f"{each:.{digits}f}" for each in _numbers(rows, *within))


def _numbers(rows: Rows, *within: str) -> list[float]:
    return [row["ours"] for row in rows if all(text in row["case"] for text in within)]


def _fastest(rows: Rows) -> str:
    over = _numbers(rows, "the fastest other's")
    return f"{min(over):.3f} to {max(over):.3f} times the next one's speed in {len(over)} cells (`auto` may lose 2 %)"


def _lags(rows: Rows) -> str:
    longer, faster = _numbers(rows, "LAGS' selecting"), _numbers(rows, "Top-K's step over")
    told = (sum(each > 1 for each in ratios) for ratios in (longer, faster))
    return "selects for longer in {} of {count}, is faster in {}".format(*told, count=len(longer))


def _columns(layer: str, rows: Rows) -> str:
    ratios = _numbers(rows, f"{layer}, P=")
    return f"in {sum(ratio > 1 for ratio in ratios)} of {len(ratios)} cells, by up to {max(ratios):.1f}"


_TOLD: Final[Mapping[tuple[str, int], tuple[str, Callable[[Rows], str]]]] = MappingProxyType(
    {
        ("1.4", 1): ("dlgs", lambda rows: f"{_ours(rows, 'over dense')} (resnet20, vgg16_cifar, resnet50)"),
        ("1.4", 3): ("dlgs", _fastest),
        ("1.4", 4): ("dlgs", _lags),
        ("1.4", 6): ("dlgs", lambda rows: "three models, seven ways each"),
        ("2", 2): ("ps-vs-ring", lambda rows: _ours([row for row in rows if row["paper"]], digits=0)),
        ("2", 3): ("ring-vs-mpi", lambda rows: _ours([row for row in rows if row["paper"]])),
        ("3", 1): ("fc", partial(_columns, "FC1")),
        ("3", 2): ("fc", partial(_columns, "FC2")),
        ("3", 3): ("fc", partial(_columns, "FC3")),
        ("4", 1): ("weird-trick", lambda rows: f"{_ours(rows, '(b)', 'hide')} of 2, 4, 8 transfers"),
        ("4", 4): (
            "weird-trick",
            lambda rows: f"to that with K = 2: {_ours(rows, '(c)', 'over products', digits=2)}",
        ),
        ("5", 1): ("zero-memory", lambda rows: f"{sum(not row['deviation'] for row in rows)} cells equal"),
        ("6", 1): ("swdnn", lambda rows: _ours(rows, "172", digits=0)),
        ("6", 2): ("swdnn", lambda rows: _ours(rows, "the fastest", digits=0)),
        ("6", 3): ("dgemm", lambda rows: f"{_ours([row for row in rows if row['paper']], digits=3)} of the peak"),
    }
)


def _line(name: str, figure: Mapping[str, Any]) -> str:
    rows = figure["rows"]
    cells = []
    for basis in _BASES:
        of_basis = [row for row in rows if row["basis"] == basis]
        if of_basis:
            cells.append(f"{sum(not _fails(row) for row in of_basis)} of {len(of_basis)} {basis}")
    failing = "; ".join(_failing(rows)) or "-"
    return f"| [`{name}`](figures/{name}.svg) | {', '.join(cells)} | {failing} |"


def _fails(row: Mapping[str, Any]) -> bool:
    if row["basis"] == "in words":
        return not row["agrees"]
    return abs(float(row["deviation"] or 0.0)) > _MOST.get(row["basis"], math.inf)


def _failing(rows: Rows) -> Iterator[str]:
    """The rows that fail by their term, of which the furthest is named: `2 rows, case (deviation): term`."""
    far = [row for row in rows if _fails(row)]
    for term in dict.fromkeys(row["term"] for row in far):
        alike = [row for row in far if row["term"] == term]
        furthest = max(alike, key=lambda row: row["ours"] if row["deviation"] is None else abs(row["deviation"]))
        count = f"{len(alike)} rows, " if len(alike) > 1 else ""
        yield f"{count}{furthest['case']} ({_away(furthest)}): {term}"


def _away(row: Mapping[str, Any]) -> str:
    return f"{row['ours']:.1f} times" if row["deviation"] is None else f"{row['deviation']:+.0%}"


def deviations(results: Mapping[str, Any], section: str, number: int) -> tuple[str, str]:
    """The basis of a claim's comparison, and the deviations of the rows that show it; `-` where there are none."""
    if (section, number) not in _TOLD:
        return "-", "-"
    name, _ = _TOLD[section, number]
    within = _ROWS_OF.get((section, number), "")
    rows = [row for row in results["figures"][name]["rows"] if row["paper"] is not None and within in row["case"]]
    away = sorted(row["deviation"] for row in rows)
    basis = ", ".join(dict.fromkeys(row["basis"] for row in rows)) or "not printed"
    if not away:
        return basis, "-"
    ends = dict.fromkeys(f"{each:+.0%}" for each in (away[0] + 0.0, away[-1] + 0.0))
    return basis, " to ".join(ends)


def main() -> None:
    """Print the table, or put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=_RESULTS, help="the results of all figures")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    text = table(json.loads(options.json.read_text()))
    print(text)
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), SOURCE, text))


if __name__ == "__main__":
    main()
