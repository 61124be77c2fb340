"""`taihu simulate figure`: rows of paper, ours and the deviation, and their picture."""

from __future__ import annotations

import difflib
from pathlib import Path

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import aligned
from taihu.core.process.results import check_folder_writable, check_writable, write_json
from taihu.simulation.figures.catalogue import FIGURES
from taihu.simulation.figures.figure import Figure, Row

__all__ = ["run_figures"]


def run_figures(name: str | None, json_file: Path | None, pictures: Path | None, *, every: bool) -> None:
    """Print the figure of this name, all, or without a name the list of them; draw them into the folder `pictures`.

    Raises:
        ConfigError: there is no such figure, or what is asked for cannot be written.
    """
    if every and name is not None:
        raise ConfigError(f"figure {name} --all: expected one of the two")
    names = list(FIGURES) if every else [] if name is None else [_known(name)]
    if not names and (json_file or pictures):
        raise ConfigError(f"figure: which one is to be written? give one of {', '.join(FIGURES)}, or --all")
    check_writable(json_file)
    check_folder_writable(pictures)
    if not names:
        typer.echo(f"figures: {', '.join(FIGURES)}; taihu simulate figure NAME, or --all")
        return
    found = {}
    for each in names:
        found[each] = FIGURES[each]()
        for line in _lines(each, found[each]):
            typer.echo(line)
    if pictures is not None:
        from taihu.cli.simulation.picture import draw_figures  # noqa: PLC0415 - only drawing needs matplotlib

        draw_figures(pictures, found)
    if json_file is not None:
        tables = {each: figure.to_json() for each, figure in found.items()}
        write_json(json_file, {"figures": tables} if every else tables[names[0]])


def _known(name: str) -> str:
    if name in FIGURES:
        return name
    near = difflib.get_close_matches(name, FIGURES, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FIGURES)}"
    raise ConfigError(f"figure {name}: there is none; {hint}")


def _lines(name: str, figure: Figure) -> list[str]:
    header = ["", "paper", "ours", *figure.beside, "deviation", "basis", ""]
    rows = [header, *(_cells(row, list(figure.beside)) for row in figure.rows)]
    facts = [f"{name}: {figure.title}", f"constants: {figure.constants}"]
    facts += [f"{column}: {words}" for column, words in figure.beside.items()]
    return [*facts, *aligned(rows, left=1), ""]


def _cells(row: Row, columns: list[str]) -> list[str]:
    further = [f"{row.beside[column]:.4g}" if column in row.beside else "" for column in columns]
    deviation = "-" if row.deviation is None else f"{round(row.deviation, 3) + 0.0:+.1%}"
    if row.words:
        deviation = "agrees" if row.agrees else "does not"
    return [row.case, row.paper_as_text(), f"{row.ours:.4g}", *further, deviation, row.basis, row.term]
