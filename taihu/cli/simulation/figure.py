"""`taihu simulate figure`: rows of paper, ours and the deviation, and their picture."""

from __future__ import annotations

import difflib
import json
import math
from pathlib import Path

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import aligned, one_line
from taihu.core.process.results import check_folder_writable, check_writable, write_json
from taihu.simulation.figures.catalogue import FIGURES
from taihu.simulation.figures.figure import Figure, Row
from taihu.simulation.figures.sparse import MODELS, sparse_methods

_SPARSE = "dlgs"


def run_figures(
    name: str | None, json_file: Path | None, pictures: Path | None, rates: Path | None = None, *, every: bool
) -> None:
    """Print the figure of this name, all, or without a name the list of them; draw them into the folder `pictures`.

    `rates` is a file of examples a second by model, for the figure of sparse methods.

    Raises:
        ConfigError: there is no such figure, or what is asked for cannot be read or written.
    """
    if rates is not None and name != _SPARSE:
        raise ConfigError(f"--rates {rates}: compute is that of figure {_SPARSE} alone; give that name")
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
        found[each] = FIGURES[each]() if rates is None else sparse_methods(_rates_in(rates))
        for line in _lines(each, found[each]):
            typer.echo(line)
    if pictures is not None:
        from taihu.cli.simulation.picture import draw_figures  # noqa: PLC0415 - only drawing needs matplotlib

        draw_figures(pictures, found)
    if json_file is not None:
        tables = {each: figure.to_json() for each, figure in found.items()}
        write_json(json_file, {"figures": tables} if every else tables[names[0]])


def _rates_in(path: Path) -> dict[str, float]:
    names = [setting.name for setting in MODELS]
    shown = f"models: {', '.join(names)}"
    wanted = f'expected an object of numbers above 0 by model, as {{"{names[-1]}": 721}}; {shown}'
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--rates {path}: {one_line(str(error))}; {wanted}") from None
    if not isinstance(read, dict) or not read.keys() <= set(names):
        raise ConfigError(f"--rates {path}: {wanted}")
    for each in read.values():
        if isinstance(each, bool) or not isinstance(each, int | float) or not 0 < each < math.inf:
            raise ConfigError(f"--rates {path}: {each!r}: {wanted}")
    return {name: float(rate) for name, rate in read.items()}


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
