"""Loggers as a package of somebody else may bring them: one that is good, and some that are not."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from taihu.loggers import Kind, LoggedRow, LoggedRun, State


class Lines:
    """Writes a line for every row."""

    def __init__(self, run: LoggedRun) -> None:
        self._path = Path(run.kept) / "lines"
        self._run = run

    def begin(self, handed: Mapping[Kind, int]) -> Mapping[Kind, int]:
        self._write(["begin", self._run.name, dict(self._run.settings), dict(self._run.tags), dict(handed)])
        return handed

    def log(self, rows: Sequence[LoggedRow]) -> None:
        for row in rows:
            self._write([row.kind, row.step, dict(row.values)])

    def end(self, state: State) -> None:
        self._write(["end", state])

    def _write(self, line: list[object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Failing(Lines):
    """Fails with its second row."""

    def log(self, rows: Sequence[LoggedRow]) -> None:
        if rows[-1].step > 1:
            raise ValueError("the service\nhas gone.")
        super().log(rows)


class Hanging(Lines):
    """Never returns from its first rows."""

    def log(self, rows: Sequence[LoggedRow]) -> None:
        threading.Event().wait()


NO_LOGGER = 7
