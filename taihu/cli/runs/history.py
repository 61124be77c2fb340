"""`taihu dev history`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.core.base.errors import RunError
from taihu.core.base.words import counted
from taihu.core.history.checking import Verdict, check_histories
from taihu.core.history.files import read_histories

_USUAL: Final = "history"


def history(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run's folder, or the one that holds the histories of its processes."),
    ],
) -> None:
    """Check what all processes of a run recorded: nothing lost, nothing applied twice, updates in step order.

    Ends with exit code 1 where something is wrong, and says first what came first. What a process did behind the
    checkpoint from which all began again does not count.

    \b
    Examples:
      taihu train --set run.history=history           every process records what it does
      taihu dev history runs/small_cnn-on-digits-20260728-120005
      taihu dev history gathered/                         of several hosts, their files put together
    """  # noqa: D301
    folder = run / _USUAL if (run / _USUAL).is_dir() else run
    verdict = check_histories(read_histories(folder))
    if verdict.findings:
        more = len(verdict.findings) - 1
        others = f" ({counted(more, 'more finding')})" if more else ""
        raise RunError(f"{folder}: {verdict.findings[0]}{others}")
    for line in _lines(verdict):
        typer.echo(line)


def _lines(verdict: Verdict) -> list[str]:
    """The outcome in words."""
    told = f"{counted(verdict.records, 'record')} of {counted(verdict.processes, 'member')}"
    lines = [f"history         {told} in {counted(verdict.generations, 'generation')}"]
    if verdict.last < verdict.first:
        lines.append("steps           none counts: no checkpoint, and not every process has told the end of the run")
    else:
        lines.append(f"steps           {verdict.first:,} to {verdict.last:,}: nothing lost, nothing twice, in order")
    if verdict.last >= verdict.first and not verdict.has_ended:
        lines.append("the run         has not ended; what was done behind these steps was checked for order alone")
    return lines
