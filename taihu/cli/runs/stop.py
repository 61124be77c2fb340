"""`taihu stop`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.process.options import JobOption, SetOption
from taihu.core.system.clocks import monotonic, sleep
from taihu.core.system.signals import SIGTERM, pidfd_send_signal
from taihu.local.display.progress import Progress
from taihu.local.finding import held, processes_of
from taihu.local.runs import LOGS, entry_of, find_run

_LOOK_S: Final = 0.1
# In which the state of a run is noted whose processes have ended.
_NOTE_S: Final = 5.0
_RUNS: Final = Path("runs")
_ASKED: Final = "stop.asked"


def stop(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|HOST:PORT",
            help="A run here, by its folder or its name in runs/; or where its coordinator listens.",
        ),
    ],
    *,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to try, and to wait for the end of a run here.")
    ] = 60.0,
    now: Annotated[
        bool, typer.Option("--now", help="A run here that was asked before: end it at once, as failed.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With HOST:PORT: why, for logs and results.")
    ] = None,
    job_file: JobOption = None,
    assignments: SetOption = None,
) -> None:
    """Stop a run in good order: behind its next steps, with a model and, where it keeps them, a checkpoint.

    Of a run on this machine all processes are asked, once, and this command waits until they have ended; a script
    ends by SIGTERM, as it does with that. Another run is asked where server 0, in a ring worker 0, listens; under
    TLS with the certificate of operator-0. The run ends with 130, and `taihu train --resume auto` goes on from there.

    \b
    Examples:
      taihu stop runs/small_cnn-on-digits-20260728-120005
      taihu stop 10.0.0.1:7070
      taihu stop 10.0.0.1:7070 --job job.toml                  # under TLS
    """  # noqa: D301
    if ":" in target and not Path(target).exists():
        _ask(target, timeout, reason or "asked by taihu stop", job_file, assignments)
        return
    if reason is not None:
        raise ConfigError(f"--reason {reason}: is told to a coordinator; give HOST:PORT, or leave it out")
    folder = find_run(Path(target), _RUNS)
    members = list(processes_of(folder / LOGS))
    if not members:
        _tell_of_none(folder)
        return
    asked = folder / LOGS / _ASKED
    if now or not asked.exists():
        asked.touch()
        for member in members:
            with suppress(ProcessLookupError), held(member, folder / LOGS) as descriptor:
                pidfd_send_signal(descriptor, SIGTERM)
    _wait(folder, timeout)
    typer.echo(f"{folder}: {_state_at_the_end(folder)}")


def _state_at_the_end(folder: Path) -> str:
    """The state that the run ended with, which is noted by the process that started its members, behind them."""
    until_s = monotonic() + _NOTE_S
    while (state := entry_of(folder).state) == "died" and monotonic() < until_s:
        sleep(_LOOK_S)
    return state


def _tell_of_none(folder: Path) -> None:
    """Tell of a run none of whose processes lives here; raises RunError where they may come yet."""
    state = entry_of(folder).state
    if state == "starting":
        raise RunError(f"{folder}: its processes are being started; ask again in some seconds")
    typer.echo(f"{folder}: {state}; no process of it lives on this machine")


def _wait(folder: Path, timeout_s: float) -> None:
    """Return when no process of the run lives any more; raises RunError when time is up."""
    until_s, tell = monotonic() + timeout_s, Progress()
    while living := list(processes_of(folder / LOGS)):
        if monotonic() > until_s:
            names = ", ".join(living)
            raise RunError(f"{folder}: {names} did not end within {timeout_s:g} s; --now ends them at once")
        tell(f"waiting for {', '.join(living)}")
        sleep(_LOOK_S)


def _ask(address: str, timeout_s: float, reason: str, job_file: Path | None, assignments: list[str] | None) -> None:
    from taihu.core.coordination.status import fetch_status, stop_run  # noqa: PLC0415 - a run here needs no gRPC
    from taihu.core.job.environment import resolve_job  # noqa: PLC0415
    from taihu.core.job.security import security_of_onlooker  # noqa: PLC0415
    from taihu.core.wire.base.host_names import check_host  # noqa: PLC0415

    check_host(address)
    security = security_of_onlooker(resolve_job(job_file, assignments or (), {}), "operator", address)
    job = fetch_status(address, timeout_s, security).job
    state = stop_run(address, job, reason, timeout_s, security)
    typer.echo(f"job {job}: asked to stop; it is {state.value}")
