"""Runs from their folders and files."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from taihu.core.base.errors import ConfigError
from taihu.report.run import Run, StepTable, check_results
from taihu.report.values import items, number, text

_RESULTS: Final = "results.json"
_STEPS: Final = "steps.csv"
_TRACE: Final = "trace.json"


def read_run(path: Path) -> Run:
    """The run in a folder, or that of a file of results; with `results.json` comes the folder that it lies in.

    Raises:
        ConfigError: there is none, or a file of it cannot be read or is of a later taihu.
    """
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder; give a run's folder, or what --json wrote")
    if path.name == _RESULTS and (path.parent / _STEPS).exists():
        return _read_folder(path.absolute().parent)
    results = check_results(_json(path), str(path))
    return Run(path.stem, results, trace=_trace_of(results, path.parent))


def read_trace(path: Path) -> Mapping[str, Any]:
    """A trace as `--trace` wrote it.

    Raises:
        ConfigError: the file cannot be read, or is something else.
    """
    trace = _json(path)
    if not isinstance(trace, dict) or not items(trace, "traceEvents"):
        raise ConfigError(
            f"{path}: expected a trace, as `taihu train --trace` or `taihu simulate run --trace` writes it"
        )
    return trace


def _read_folder(folder: Path) -> Run:
    results, steps = folder / _RESULTS, folder / _STEPS
    if not (results.exists() or steps.exists()):
        raise ConfigError(f"{folder}: neither {_RESULTS} nor {_STEPS} in it; expected a run's folder, runs/NAME-TIME")
    found = check_results(_json(results), str(results)) if results.exists() else {}
    return Run(
        folder.absolute().name,
        found,
        steps=_table(steps),
        tests=_table(folder / "epochs.csv"),
        settings=_settings(folder / "settings.toml"),
        events=_events(folder / "events.jsonl"),
        trace=_trace_of(found, folder),
    )


def _trace_of(results: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The trace beside the results, or where they say that it was written; nothing where it is gone."""
    told = text(results, "trace")
    for path in (folder / _TRACE, *([Path(told)] if told else [])):
        if path.is_file():
            return read_trace(path)
    return {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text; give a run's folder, or what --json wrote") from None


def _json(path: Path) -> object:
    try:
        found: object = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error}); expected what --json or --trace wrote") from None
    return found


def _settings(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        return tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML ({error}); expected the settings that taihu wrote") from None


def _table(path: Path) -> StepTable:
    """A table with a column `step`, which ascends; a row that was cut off where a run failed is left out."""
    if not path.exists():
        return StepTable()
    header, *rows = list(csv.reader(_read(path).splitlines())) or [[]]
    if "step" not in header:
        first = text(",".join(header))
        raise ConfigError(f"{path}: expected a table with a column step, its first line is {first!r}")
    whole = [[_number(cell) for cell in row] for row in rows if len(row) == len(header)]
    ascending: list[list[float | None]] = []
    at, before = header.index("step"), 0.0
    for row in whole:
        step = row[at]
        if step is not None and step > before:
            ascending.append(row)
            before = step
    return StepTable({name: tuple(row[place] for row in ascending) for place, name in enumerate(header)})


def _number(cell: str) -> float | None:
    try:
        return number(float(cell))
    except ValueError:
        return None


def _events(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The lines of a file that are objects; the last one of a run that failed may be cut off."""
    if not path.exists():
        return ()
    found = []
    for line in _read(path).splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            found.append(event)
    return tuple(found)
