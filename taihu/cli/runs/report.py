"""`taihu report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.base.whole_file import write_text
from taihu.core.process.results import check_writable
from taihu.report.page import comparison_of, page_of
from taihu.report.reading import read_run, read_trace

_REPORT: Final = "report.html"
_COMPARISON: Final = "comparison.html"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="A run's folder, or what --json wrote, of a simulation too."),
    ],
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A trace of the run, for the timeline of a step, if not RUN/trace.json."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.html",
            help="The page; by default RUN/report.html, of several runs comparison.html.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Make one HTML page of a run: loss and accuracy, where its time went, what was exchanged, its processes.

    Of several runs it is a page that shows them beside each other.

    The page needs nothing else, no network either. What was not measured is left out, with a word on how to get it.

    \b
    Examples:
      taihu report runs/small_cnn-on-digits-20260728-120005 --open
      taihu report runs/first --trace trace.json --out first.html
      taihu report result.json              what taihu train --json wrote
      taihu report simulated.json           what taihu simulate run --json wrote
      taihu report runs/first runs/second   beside each other
    """  # noqa: D301
    if trace is not None and len(runs) > 1:
        raise ConfigError(f"--trace {trace}: of which of the runs? give one RUN")
    found = [read_run(run) for run in runs]
    if trace is not None:
        found = [found[0].with_trace(read_trace(trace))]
    page = out if out is not None else _usual_place(runs)
    check_writable(page)
    write_text(page, page_of(found[0]) if len(found) == 1 else comparison_of(found))
    typer.echo(f"report          {page}")
    if show and not webbrowser.open(page.absolute().as_uri()):
        typer.echo("no browser could be opened here; open the file in one", err=True)


def _usual_place(runs: list[Path]) -> Path:
    """The page of one run lies with it, that of several ones here."""
    if len(runs) > 1:
        return Path(_COMPARISON)
    return (runs[0] if runs[0].is_dir() else runs[0].parent) / _REPORT
