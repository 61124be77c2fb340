"""`taihu report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.errors import ConfigError
from taihu.report.page import page_of
from taihu.report.reading import read_run, read_trace
from taihu.results import check_writable

__all__ = ["report"]

_REPORT: Final = "report.html"


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, or what --json wrote, of a simulation too.")
    ],
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A trace of the run, for the timeline of a step; by default RUN/trace.json."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE.html", help="The page; by default RUN/report.html."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Make one HTML page of a run: loss and accuracy, where its time went, what was exchanged, its processes.

    The page needs nothing else, no network either. What the run has not measured is left out, with a word on how to
    get it.

    \b
    Examples:
      taihu report runs/small_cnn-on-digits-20260728-120005 --open
      taihu report runs/first --trace trace.json --out first.html
      taihu report result.json                        of taihu train --json result.json: report.html beside it
      taihu report simulated.json --trace trace.json  of taihu simulate JOB.toml --json simulated.json
    """  # noqa: D301
    page = out if out is not None else (run if run.is_dir() else run.parent) / _REPORT
    found = read_run(run)
    if trace is not None:
        found = found.with_trace(read_trace(trace))
    check_writable(page)
    try:
        page.write_text(page_of(found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {page}: {error.strerror}; give --out FILE.html") from None
    typer.echo(f"report          {page}")
    if show and not webbrowser.open(page.absolute().as_uri()):
        typer.echo("no browser could be opened here; open the file in one", err=True)
