"""Runs on this machine, by the folders that they leave: their state, steps and scores, and their logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from taihu.core.base.errors import ConfigError
from taihu.core.job.run_folder import EPOCHS, EVENTS, SETTINGS, STEPS, usual_results
from taihu.core.system.clocks import wall_s
from taihu.local.finding import processes_of

LOGS: Final = "logs"
_LAST: Final = {"finished": "finished", "stopped": "stopped", "failed": "failed"}
_TAIL_BYTES: Final = 1 << 16
# In which a new run's processes are started.
_NEW_S: Final = 60.0
_LOG: Final = re.compile(r"(server|worker)-\d+\.log")


@dataclass(frozen=True)
class RunEntry:
    """A run as its folder tells of it.

    Attributes:
        folder: of the run.
        state: starting, running, finished, stopped, failed, or died: no process lives, and none said why.
        step: the last one that is noted.
        steps: of the whole run; None where that is not known.
        started: when its folder was made, in UTC.
        loss: the final one, or the last that is noted.
        accuracy: of the last test.
    """

    folder: Path
    state: str
    step: int
    steps: int | None
    started: str
    loss: float | None
    accuracy: float | None

    def to_json(self) -> dict[str, Any]:
        """The entry as results show it."""
        return {**vars(self), "folder": str(self.folder)}


def runs_in(folder: Path) -> list[RunEntry]:
    """The runs whose folders lie in `folder`, the newest last.

    Raises:
        ConfigError: there is no such folder.
    """
    if (folder / SETTINGS).is_file():
        raise ConfigError(f"{folder}: is a run; give the folder that it lies in")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no folder of runs; taihu train makes `runs` in the current folder")
    found = [entry_of(each) for each in folder.iterdir() if (each / SETTINGS).is_file()]
    return sorted(found, key=lambda run: (run.started, run.folder.name))


def find_run(named: Path | None, runs: Path) -> Path:
    """The folder of a run: the one that is named, by its path or its name in `runs`, or the newest there.

    Raises:
        ConfigError: there is none.
    """
    if named is None:
        entries = runs_in(runs)
        if not entries:
            raise ConfigError(f"{runs}: no run is there; name the folder of one")
        return entries[-1].folder
    for folder in (named, runs / named):
        if (folder / SETTINGS).is_file():
            return folder
    raise ConfigError(f"{named}: no folder of a run; taihu runs lists them, and one elsewhere is HOST:PORT")


def logs_of(run: Path) -> dict[str, Path]:
    """The logs of a run by member, servers first."""
    found = sorted(path for path in (run / LOGS).glob("*.log") if _LOG.fullmatch(path.name))
    return {path.stem.replace("-", " "): path for path in found}


def entry_of(folder: Path) -> RunEntry:
    """A run, by its folder."""
    events = list(_events(folder / EVENTS))
    begun_s = (folder / SETTINGS).stat().st_mtime
    state = _state(events, is_alive=bool(processes_of(folder / LOGS)), is_new=wall_s() - begun_s < _NEW_S)
    begun: Mapping[str, Any] = next((event for event in reversed(events) if event.get("event") == "training"), {})
    row, tested = _last_row(folder / STEPS), _last_row(folder / EPOCHS)
    results = _results(usual_results(folder))
    return RunEntry(
        folder,
        state,
        step=int(row.get("step") or 0),
        steps=_number(begun.get("steps"), int),
        started=datetime.fromtimestamp(begun_s, UTC).isoformat(),
        loss=_number(results.get("final_loss"), float) or _number(row.get("worker_0_loss"), float),
        accuracy=_number(tested.get("test_accuracy"), float),
    )


def _state(events: Sequence[Mapping[str, Any]], *, is_alive: bool, is_new: bool) -> str:
    if is_alive:
        return "running"
    if not events and is_new:
        return "starting"
    said = [_LAST[event["event"]] for event in events if event.get("event") in _LAST]
    return said[-1] if said else "died"


def _events(path: Path) -> Iterator[Mapping[str, Any]]:
    """The events that can be read: a run that goes on may be writing the last one."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _last_row(path: Path) -> dict[str, str]:
    """The last whole row of a table, which may be long."""
    try:
        with path.open("rb") as file:
            header = file.readline().decode(errors="replace").strip().split(",")
            file.seek(max(file.tell(), path.stat().st_size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except OSError:
        return {}
    rows = [line for line in tail.rpartition("\n")[0].splitlines() if line.count(",") == len(header) - 1]
    return dict(zip(header, rows[-1].split(","), strict=True)) if rows else {}


def _results(path: Path | None) -> Mapping[str, Any]:
    try:
        results = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
    except (OSError, ValueError):
        return {}
    return results if isinstance(results, dict) else {}


def _number(value: Any, kind: type[Any]) -> Any:
    try:
        return None if value in (None, "") else kind(value)
    except (TypeError, ValueError):
        return None
