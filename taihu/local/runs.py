"""Runs on this machine, by the folders that they leave: their state, steps and scores, and their logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from taihu.core.base.errors import ConfigError
from taihu.core.job.run_folder import EVENTS, SETTINGS, STEPS, usual_results
from taihu.local.finding import processes_of

__all__ = ["LOGS", "RunEntry", "find_run", "logs_of", "runs_in"]

LOGS: Final = "logs"
_LAST: Final = {"finished": "finished", "stopped": "stopped", "failed": "failed"}
_TAIL_BYTES: Final = 1 << 16
_LOG: Final = re.compile(r"(server|worker)-\d+\.log")


@dataclass(frozen=True)
class RunEntry:
    """A run as its folder tells of it.

    Attributes:
        folder: of the run.
        state: running, finished, stopped, failed, or died: no process lives, and none said why.
        step: the last one that is noted.
        steps: of the whole run; None where that is not known.
        started: time of the first event, as it is written there; "" without one.
        loss: the last one that is noted.
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
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no folder of runs; taihu train makes `runs` in the current folder")
    found = [_entry(each) for each in folder.iterdir() if (each / SETTINGS).is_file()]
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
    raise ConfigError(f"{named}: no folder of a run; taihu runs lists them")


def logs_of(run: Path) -> dict[str, Path]:
    """The logs of a run by member, servers first."""
    found = sorted(path for path in (run / LOGS).glob("*.log") if _LOG.fullmatch(path.name))
    return {path.stem.replace("-", " "): path for path in found}


def _entry(folder: Path) -> RunEntry:
    events = list(_events(folder / EVENTS))
    state = _state(events, is_alive=bool(processes_of(folder / LOGS)))
    begun: Mapping[str, Any] = next((event for event in reversed(events) if event.get("event") == "training"), {})
    row, results = _last_row(folder / STEPS), _results(usual_results(folder))
    metrics = results.get("test_metrics")
    return RunEntry(
        folder,
        state,
        step=int(row.get("step") or 0),
        steps=_number(begun.get("steps"), int),
        started=str(events[0].get("time", "")) if events else "",
        loss=_number(row.get("worker_0_loss"), float),
        accuracy=_number(metrics.get("accuracy"), float) if isinstance(metrics, Mapping) else None,
    )


def _state(events: Iterable[Mapping[str, Any]], *, is_alive: bool) -> str:
    if is_alive:
        return "running"
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
