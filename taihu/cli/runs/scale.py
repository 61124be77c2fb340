"""`taihu scale`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.base.words import counted
from taihu.core.system.clocks import monotonic, sleep
from taihu.local.display.progress import Progress
from taihu.local.finding import processes_of
from taihu.local.runs import LOGS, find_run
from taihu.local.scripts.lives import refused

_LOOK_S: Final = 0.1
_RUNS: Final = Path("runs")


def scale(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run of taihu run here: its folder, or its name in runs/.")
    ],
    workers: Annotated[int, typer.Argument(metavar="WORKERS", min=1, help="The number of workers to go on with.")],
    *,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for an answer.")] = 60.0,
) -> None:
    """Have a PyTorch script that taihu run has started go on with another number of workers.

    All processes are started again behind the last step, and go on from what taihu.torch.state has kept. Batches of
    taihu.torch.ElasticSampler stay as large, and no sample is left out or comes twice.

    \b
    Examples:
      taihu scale runs/train-20260728-120005 4
      taihu scale train-20260728-120005 2
    """  # noqa: D301
    folder = find_run(run, _RUNS)
    living = processes_of(folder / LOGS)
    if not living:
        remedy = f"taihu run --workers {workers} --resume {folder} goes on with it"
        raise RunError(f"{folder}: no process of it lives on this machine; {remedy}")
    until_s, tell = monotonic() + timeout, Progress()

    def pause() -> None:
        if monotonic() > until_s:
            raise RunError(f"{folder}: no answer within {timeout:g} s; is it a run of taihu run?")
        tell(f"waiting for {folder}")
        sleep(_LOOK_S)

    if (why := refused(folder, workers, pause)) is not None:
        raise ConfigError(f"{folder}: does not go on with {counted(workers, 'worker')}: {why}")
    typer.echo(f"{folder}: goes on with {counted(workers, 'worker')}")
