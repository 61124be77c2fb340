"""`taihu stop`."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.core.base.errors import RunError
from taihu.core.process.options import JobOption, SetOption
from taihu.local.finding import held, processes_of
from taihu.local.progress import Progress
from taihu.local.runs import LOGS, find_run

__all__ = ["stop"]

_LOOK_S: Final = 0.1
_RUNS: Final = Path("runs")


def stop(
    target: Annotated[
        str,
        typer.Argument(metavar="RUN|HOST:PORT", help="A run here, by its folder; or where its coordinator listens."),
    ],
    *,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to try, and to wait for the end of a run here.")
    ] = 60.0,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why: for logs and results.")] = "asked by taihu stop",
    job_file: JobOption = None,
    assignments: SetOption = None,
) -> None:
    """Stop a run in good order: behind its next steps, with a model and, where it keeps them, a checkpoint.

    Of a run on this machine all processes are asked, and this command waits until they have ended. Another one is
    asked where server 0, in a ring worker 0, listens; under TLS with the certificate of operator-0. `taihu train
    --resume` goes on.

    \b
    Examples:
      taihu stop runs/small_cnn-on-digits-20260728-120005
      taihu stop 10.0.0.1:7070
      taihu stop 10.0.0.1:7070 --job job.toml                  # under TLS
    """  # noqa: D301
    if ":" in target and not Path(target).exists():
        _ask(target, timeout, reason, job_file, assignments)
        return
    folder = find_run(Path(target), _RUNS)
    members = list(processes_of(folder / LOGS))
    if not members:
        typer.echo(f"{folder}: no process of it lives on this machine")
        return
    for member in members:
        with suppress(ProcessLookupError), held(member, folder / LOGS) as descriptor:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    _wait(folder, timeout)
    typer.echo(f"{folder}: stopped")


def _wait(folder: Path, timeout_s: float) -> None:
    """Return when no process of the run lives any more; raises RunError when time is up."""
    until_s, tell = time.monotonic() + timeout_s, Progress()
    while living := list(processes_of(folder / LOGS)):
        if time.monotonic() > until_s:
            names = ", ".join(living)
            raise RunError(
                f"{folder}: {names} did not end within {timeout_s:g} s; the same command ends them at once"
            )
        tell(f"waiting for {', '.join(living)}")
        time.sleep(_LOOK_S)


def _ask(address: str, timeout_s: float, reason: str, job_file: Path | None, assignments: list[str] | None) -> None:
    from taihu.core.coordination.status import fetch_status, stop_run  # noqa: PLC0415 - a run here needs no gRPC
    from taihu.core.job.environment import resolve_job  # noqa: PLC0415
    from taihu.core.job.security import security_of_onlooker  # noqa: PLC0415
    from taihu.core.wire.host_names import check_host  # noqa: PLC0415

    check_host(address)
    security = security_of_onlooker(resolve_job(job_file, assignments or (), {}), "operator", address)
    job = fetch_status(address, timeout_s, security).job
    state = stop_run(address, job, reason, timeout_s, security)
    typer.echo(f"job {job}: asked to stop; it is {state.value}")
