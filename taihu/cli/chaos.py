"""`taihu dev chaos`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.base.words import counted
from taihu.core.chaos.faults import ANY, GRAMMAR, Fault, FaultKind, fault_from, is_member
from taihu.core.chaos.schedule import drawn, named
from taihu.core.system.clocks import local_now, monotonic, sleep
from taihu.local.disturbing import Disturbance

_WAITS_S: Final = 0.2


def chaos(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that `taihu train` runs here.")],
    faults: Annotated[
        list[str] | None, typer.Argument(metavar="[FAULT]...", help="Faults, one after another: " + GRAMMAR)
    ] = None,
    *,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.01, help="Draw faults, so far apart in the mean.")
    ] = None,
    times: Annotated[int | None, typer.Option(metavar="N", min=1, help="End after so many drawn faults.")] = None,
    kinds: Annotated[str, typer.Option(metavar="KIND,...", help="The kinds of drawn faults.")] = "kill",
    members: Annotated[
        str, typer.Option(metavar="MEMBER,...", help="The members of drawn faults; all that live, if none is named.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="What draws begin with.")] = 0,
    logs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What `taihu train` was given as --logs, if anything.")
    ] = None,
) -> None:
    """Have faults happen to a run on this machine: kill, stop or end its processes, from outside.

    kill, stop and terminate work on every run. All others (drop, full-disk, corrupt ...) happen inside of a process:
    the run has to be started with --set chaos.listens=true. Seconds of `after` count from this command's start. Drawn
    faults go on until the run has ended, or Ctrl-C. A process that was stopped goes on after its time, also when this
    command has ended. Exit codes: 0 done, 1 no such process, 2 bad usage, 130 for Ctrl-C.

    \b
    Examples:
      taihu dev chaos runs/mine "kill worker 1"
      taihu dev chaos runs/mine "stop server 0 for 20 s" "kill any after 30 s"
      taihu dev chaos runs/mine --every 2 --times 50 --seed 7
      taihu dev chaos runs/mine --every 5 --kinds kill,stop,drop --members "worker 1,worker 2"
    """  # noqa: D301
    if not run.is_dir():
        raise ConfigError(f"{run}: no folder of a run; `taihu train` says where its is")
    if bool(faults) == (every is not None):
        raise ConfigError("expected faults, or --every SECONDS; see 'taihu dev chaos --help'")
    disturbance = Disturbance(run, logs)
    living = disturbance.members()
    if not living:
        raise RunError(f"{run}: none of its processes lives on this machine; give --logs where `taihu train` had it")
    if faults:
        _do_all(disturbance, list(named([_asked_for(text) for text in faults], living, seed).values()))
        return
    wanted = [name.strip() for name in members.split(",") if name.strip()] or living
    if wrong := next((name for name in wanted if not is_member(name)), None):
        raise ConfigError(f"--members {wrong}: expected members, for example 'worker 1,server 0'")
    endless = (fault for _, fault in drawn(_kinds(kinds), wanted, seed=seed, every_s=every or 1.0))
    _do_drawn(disturbance, islice(endless, times))


def _asked_for(text: str) -> Fault:
    """A fault in words; without a time it is now."""
    try:
        return fault_from(text)
    except ValueError as error:
        when, lasts, seconds = text.partition(" for ")
        with suppress(ValueError):
            return fault_from(f"{when} after 0 s{lasts}{seconds}")
        raise ConfigError(str(error)) from None


def _kinds(text: str) -> list[FaultKind]:
    # Drawn faults have a time each, and a delay is one of whoever passes a point.
    known = [kind for kind in FaultKind if kind is not FaultKind.DELAY]
    words = [word.strip() for word in text.split(",")]
    if wrong := [word for word in words if word not in list(map(str, known))]:
        raise ConfigError(f"--kinds {wrong[0]}: expected some of {', '.join(known)}")
    return [FaultKind(word) for word in words]


def _do_all(disturbance: Disturbance, faults: Sequence[Fault]) -> None:
    for fault in faults:
        disturbance.check(fault)
    start = monotonic()
    for fault in sorted(faults, key=lambda each: each.after_s or 0.0):
        sleep(max(0.0, start + (fault.after_s or 0.0) - monotonic()))
        _do(disturbance, fault)


def _do_drawn(disturbance: Disturbance, faults: Iterator[Fault]) -> None:
    """Do faults at their times, until the run has ended; a member that does not live then is passed over."""
    start, done = monotonic(), 0
    for fault in faults:
        disturbance.check(fault)
        while monotonic() - start < (fault.after_s or 0.0):
            if not disturbance.members():
                typer.echo(f"the run has ended after {counted(done, 'fault')}")
                return
            sleep(_WAITS_S)
        try:
            _do(disturbance, fault)
            done += 1
        except RunError as error:
            typer.echo(f"{local_now():%H:%M:%S} not done: {error}")
    typer.echo(f"{counted(done, 'fault')} done")


def _do(disturbance: Disturbance, fault: Fault) -> None:
    assert fault.member != ANY  # noqa: S101
    disturbance.do(fault)
    lasts = f" for {fault.lasts_s:g} s" if fault.lasts_s else ""
    typer.echo(f"{local_now():%H:%M:%S} {fault.kind.value} {fault.member}{lasts}")
