"""Histories as files: a line of JSON for each record, one file for each process and those in its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog
from pydantic import TypeAdapter, ValidationError

from taihu.core.base.errors import ConfigError
from taihu.core.history.records import Begin, Record
from taihu.core.system.threads import Lock

_SUFFIX: Final = ".jsonl"
_RECORD: Final[TypeAdapter[Record]] = TypeAdapter(Record)


def _warn(text: str) -> None:
    structlog.get_logger().warning(text)


class HistoryFile:
    """The history of a process, `worker-0.jsonl` in a folder; a context manager, whose records any thread may add.

    Each record is handed to the system at once: a process that is killed has told what it did. A disk that fails ends
    the history, of which `say` is told, and not the run.

    Raises:
        ConfigError: the file cannot be made.
    """

    def __init__(self, folder: Path, member: str, say: Callable[[str], None] = _warn) -> None:
        path = folder / f"{member.replace(' ', '-')}{_SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(f"run.history {folder}: {error.strerror}; name a folder that can be written") from None
        self._path = path
        self._say = say
        self._lock = Lock()
        self._is_broken = False
        # Who was killed in this place may have left half a line.
        self._write(b"\n")

    def add(self, record: Record) -> None:
        """Add a record."""
        self._write(_RECORD.dump_json(record) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_broken = True  # what threads of this generation tell from now on belongs to nobody
            os.close(self._file)

    def _write(self, line: bytes) -> None:
        with self._lock:
            if self._is_broken:
                return
            try:
                written = os.write(self._file, line)
                problem = "" if written == len(line) else "no space left"
            except OSError as error:
                problem = error.strerror or str(error)
            if problem:
                self._is_broken = True
                self._say(f"cannot write {self._path}: {problem}; the history ends, and the run goes on without it")


def read_histories(folder: Path) -> list[list[Record]]:
    """The histories in a folder: the records of each process.

    A line that a process was killed in is left out: it is the last one of its life.

    Raises:
        ConfigError: there are none, or a line is no record.
    """
    files = sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []
    if not files:
        raise ConfigError(f"{folder}: no history there; train with --set run.history=history")
    return [_read(path) for path in files]


def _read(path: Path) -> list[Record]:
    try:
        lines = [(number, line) for number, line in enumerate(path.read_bytes().split(b"\n"), 1) if line]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    records: list[Record] = []
    damaged = 0
    for number, line in lines:
        try:
            record = _RECORD.validate_json(line)
        except ValidationError:
            damaged = damaged or number
            continue
        if damaged and not isinstance(record, Begin):
            break
        damaged = 0
        records.append(record)
    if damaged and damaged != lines[-1][0]:
        raise ConfigError(f"{path}, line {damaged}: no record of a history; expected what run.history wrote")
    return records
