"""Results as JSON files."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from taihu.core.base.errors import ConfigError
from taihu.core.base.whole_file import write_text, writing
from taihu.core.process.streams import output_lost

RESULTS_FORMAT: Final = "taihu results 1"
"""The key `format` of what a run leaves: keys may be added to it, not changed."""

_STDOUT = "-"


def is_stdout(path: object) -> bool:
    """Whether results go to standard output."""
    return path is not None and str(path) == _STDOUT


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON as its specification has it: a number that is not finite is null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def check_writable(*paths: Path | None) -> None:
    """Raise ConfigError for a file that cannot be written, before hours of work depend on it; `none` is none."""
    for path in paths:
        if path is None or str(path) in {"none", _STDOUT}:
            continue
        if path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a folder; give a file in it")
        if not (os.access(path, os.W_OK) or (path.parent.is_dir() and os.access(path.parent, os.W_OK))):
            raise ConfigError(
                f"cannot write {path}: {path.parent} is not a folder that can be written; create it first"
            )


def check_folder_writable(path: Path | None) -> None:
    """Raise ConfigError for a folder that can neither be written to nor made; nothing is made."""
    if path is None:
        return
    place = next(folder for folder in (path, *path.absolute().parents) if folder.exists() or folder.is_symlink())
    if not place.is_dir():
        raise ConfigError(f"cannot write to {path}: {place} is not a folder; give another one")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to {path}: no right to write in {place}; give another folder")


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write `results`, indented, to the file or, for `-`, to standard output.

    Raises:
        WriteError: the file cannot be written.
    """
    text = as_json(results, indent=2) + "\n"
    if is_stdout(path):
        # What a command tells people goes elsewhere, see `taihu.core.process.command_line`.
        stream = sys.__stdout__ or sys.stdout
        stream.write(text)
        stream.flush()
        if (lost := output_lost()) is not None:
            raise lost
        return
    write_text(path, text)


@contextmanager
def json_lines(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields what writes an object as a line of the file or, for `-`, of standard output; without a path, nothing.

    It raises WriteError where it cannot.
    """
    if path is None:
        yield lambda _: None
        return
    with ExitStack() as stack:
        with writing(path):
            stream = (sys.__stdout__ or sys.stdout) if is_stdout(path) else stack.enter_context(path.open("w"))

        def write(value: dict[str, Any]) -> None:
            with writing(path):
                stream.write(as_json(value) + "\n")
                stream.flush()

        yield write


def read_json(path: Path) -> dict[str, Any]:
    """The results that `write_json` wrote."""
    results: dict[str, Any] = json.loads(path.read_text())
    return results
