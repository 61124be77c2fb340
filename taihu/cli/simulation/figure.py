"""`taihu simulate figure`: rows of paper, ours and the deviation."""

from __future__ import annotations

import difflib
from pathlib import Path

import typer

from taihu.errors import ConfigError
from taihu.results import check_writable, write_json
from taihu.simulation.figures import FIGURES, Figure
from taihu.words import aligned

__all__ = ["run_figures"]


def run_figures(name: str | None, json_file: Path | None, *, every: bool) -> None:
    """Print the figure of this name, all, or without a name the list of them.

    Raises:
        ConfigError: there is no such figure.
    """
    check_writable(json_file)
    if name is None and not every:
        typer.echo(f"figures: {', '.join(FIGURES)}; taihu simulate figure NAME, or --all")
        return
    names = list(FIGURES) if every else [_known(str(name))]
    found = {each: FIGURES[each]() for each in names}
    for each, figure in found.items():
        for line in _lines(each, figure):
            typer.echo(line)
    if json_file is not None:
        tables = {each: _as_json(figure) for each, figure in found.items()}
        write_json(json_file, {"figures": tables} if every else tables[names[0]])


def _known(name: str) -> str:
    if name in FIGURES:
        return name
    near = difflib.get_close_matches(name, FIGURES, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FIGURES)}"
    raise ConfigError(f"figure {name}: there is none; {hint}")


def _as_json(figure: Figure) -> dict[str, object]:
    return {
        "title": figure.title,
        "constants": figure.constants,
        "rows": [row.to_json() for row in figure.rows],
    }


def _lines(name: str, figure: Figure) -> list[str]:
    rows = [["", "paper", "ours", "deviation", ""]]
    rows += [
        [
            row.case,
            " to ".join(f"{each:g}" for each in row.paper),
            f"{row.ours:.4g}",
            f"{row.deviation:+.1%}",
            row.term,
        ]
        for row in figure.rows
    ]
    return [f"{name}: {figure.title}", f"constants: {figure.constants}", *aligned(rows, left=1), ""]
