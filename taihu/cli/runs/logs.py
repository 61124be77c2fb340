"""`taihu logs`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import told
from taihu.core.system.clocks import sleep
from taihu.local.finding import processes_of
from taihu.local.runs import LOGS, find_run, logs_of

_LOOK_S: Final = 0.2
_RUNS: Final = Path("runs")
_NOT_SHOWN: Final = frozenset({"role", "rank", "event", "level", "timestamp"})


@dataclass
class _Log:
    """The log of one member, read as far as `place`; `rest` is the beginning of a line that is being written."""

    member: str
    path: Path
    place: int = 0
    rest: bytes = field(default=b"", repr=False)
    moment: str = ""

    def read(self) -> Iterator[tuple[str, str]]:
        """The lines that are new, each with what it is ordered by."""
        with self.path.open("rb") as file:
            file.seek(self.place)
            new = file.read()
        self.place += len(new)
        *lines, self.rest = (self.rest + new).split(b"\n")
        for line in lines:
            moment, text = _as_text(line.decode(errors="replace"), self.member)
            # What has no time of its own, as a script prints it, came behind the line before it.
            self.moment = moment or self.moment
            yield self.moment, text


def logs(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run's folder, or its name in runs/; else the newest.")
    ] = None,
    members: Annotated[
        list[str] | None, typer.Argument(metavar="[MEMBER]...", help="Of these alone, as worker-0 or server-0.")
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written until the run has ended, or Ctrl-C.")
    ] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", metavar="N", min=0, help="Begin with the last N lines of each.")
    ] = None,
) -> None:
    """Show what the processes of a run on this machine logged, in the order of time.

    \b
    Examples:
      taihu logs
      taihu logs runs/small_cnn-on-digits-20260728-120005 worker-1
      taihu logs --follow --lines 20
    """  # noqa: D301
    folder = find_run(run, _RUNS)
    shown = _chosen(folder, members or [])
    for line in _first(shown, lines):
        typer.echo(line)
    while follow:
        is_alive = bool(processes_of(folder / LOGS))
        for line in _first(shown, None):
            typer.echo(line)
        if not is_alive:
            return
        sleep(_LOOK_S)


def _chosen(folder: Path, members: Sequence[str]) -> list[_Log]:
    found = logs_of(folder)
    if not found:
        raise ConfigError(f"{folder / LOGS}: no logs are there; taihu train --logs DIR puts them elsewhere")
    wanted = [member.replace("-", " ") for member in members] or list(found)
    if wrong := next((member for member in wanted if member not in found), None):
        names = ", ".join(member.replace(" ", "-") for member in found)
        raise ConfigError(f"{wrong.replace(' ', '-')}: no log of it in {folder / LOGS}; there are {names}")
    return [_Log(member, found[member]) for member in wanted]


def _first(shown: Sequence[_Log], most: int | None) -> list[str]:
    """The new lines of all logs in the order of time, of each at most the last ones."""
    new = []
    for log in shown:
        own = list(log.read())
        new += own if most is None else own[len(own) - min(most, len(own)) :]
    return [line for _, line in sorted(new, key=lambda each: each[0])]


def _as_text(line: str, member: str) -> tuple[str, str]:
    """The time of a line, and the line as people read it; one that is no event stays as it is."""
    try:
        event = json.loads(line)
        moment, what, level = str(event["timestamp"]), str(event["event"]), str(event.get("level", "info"))
    except (ValueError, KeyError, TypeError):
        return "", f"{member}: {told(line)}"
    facts = " ".join(f"{key}={_short(value)}" for key, value in event.items() if key not in _NOT_SHOWN)
    grave = "" if level == "info" else f"{level}: "
    return moment, told(f"{moment[5:10]} {moment[11:23]} {member}: {grave}{what} {facts}".rstrip())


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value
