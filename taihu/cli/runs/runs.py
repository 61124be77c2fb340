"""`taihu runs`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from taihu.core.base.words import aligned
from taihu.core.process.options import JsonOption
from taihu.core.process.results import check_writable, write_json
from taihu.local.runs import RunEntry, runs_in

_COLUMNS = ("run", "started", "state", "step", "loss", "accuracy")


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="The folder of runs.")] = Path("runs"),
    json_file: JsonOption = None,
) -> None:
    """List the runs of a folder: when each began, whether it goes on or how it ended, its last step and scores.

    Times are of this machine. A run has died where none of its processes lives here and none said why it ended.

    \b
    Examples:
      taihu runs
      taihu runs /data/runs --json -
    """  # noqa: D301
    check_writable(json_file)
    found = runs_in(folder)
    for line in _lines(found):
        typer.echo(line)
    if json_file is not None:
        write_json(json_file, {"runs": [run.to_json() for run in found]})


def _lines(found: Sequence[RunEntry]) -> Sequence[str]:
    if not found:
        return ["no runs"]
    return list(aligned([_COLUMNS, *map(_row, found)], left=3))


def _row(run: RunEntry) -> tuple[str, ...]:
    of = "" if run.steps is None else f" of {run.steps:,}"
    return (
        run.folder.name,
        _local(run.started),
        run.state,
        f"{run.step:,}{of}",
        "" if run.loss is None else f"{run.loss:.4f}",
        "" if run.accuracy is None else f"{run.accuracy:.4f}",
    )


def _local(time: str) -> str:
    """The time of an event by this machine's clock, to the second."""
    try:
        return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return ""
