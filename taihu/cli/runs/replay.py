"""`taihu dev replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taihu.core.base.errors import RunError
from taihu.core.base.words import counted
from taihu.core.process.options import JsonOption
from taihu.core.process.results import check_writable, write_json


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, with the orders of its servers.")],
    json_file: JsonOption = None,
) -> None:
    """Make a run of workers that did not wait for each other again, to the same bits, from what servers recorded.

    Its data have to be there. Ends with exit code 1 where the parameters differ from those that the run ended with.

    \b
    Examples:
      taihu train --consistency async --workers 3        servers record the order in the run's folder
      taihu dev replay runs/small_cnn-on-digits-20260728-120005
    """  # noqa: D301
    from taihu.replay.replaying import read_recorded, replayed  # noqa: PLC0415 - brings the engine

    if json_file is not None:
        check_writable(json_file)
    recorded = read_recorded(run)
    gradients, updates = recorded.replay.gradients, recorded.replay.updates
    found = replayed(recorded)
    typer.echo(f"replayed        {counted(gradients, 'gradient')} in {counted(updates, 'update')} of frames")
    typer.echo(f"sha256          {found}")
    expected = recorded.expected
    if json_file is not None:
        told = {"parameters_sha256": found, "expected_sha256": expected, "gradients": gradients, "updates": updates}
        write_json(json_file, told)
    if expected is None:
        typer.echo("the run         has left no results to compare this with")
    elif found != expected:
        raise RunError(f"{run}: the run ended with other parameters, {expected}: data, code or processor are others")
    else:
        typer.echo("the run         ended with the same parameters")
