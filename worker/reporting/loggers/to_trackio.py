"""A run in trackio's database on this machine: `TRACKIO_DIR` names its folder, `trackio show` draws it.

Rows are written as trackio itself writes them, and not by `trackio.init`: that prints, and makes its run that of the
whole process, which a script may want for its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trackio.sqlite_storage import SQLiteStorage

from taihu.core.base.whole_file import write_text
from taihu.core.job.loggers import Kind, LoggedRow, LoggedRun, State
from taihu.core.system.chance import random_hex
from taihu.core.system.clocks import utc_now

_PROJECT: Final = "taihu"


class TrackioRun:
    """A `Logger`: what `log` was given is in the database when it returns, and each row is there once."""

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._id, self._name = "", run.name
        self._config: dict[str, object] | None = None

    def begin(self, handed: Mapping[Kind, int]) -> Mapping[Kind, int]:
        """Make the run, or go on with that of an earlier life, which has what was handed over."""
        kept = self._run.kept / "id"
        if not kept.exists():
            write_text(kept, f"{random_hex(16)} {utc_now().isoformat()} {self._name}")
        self._id, created, self._name = kept.read_text(encoding="utf-8").split(" ", 2)
        # An earlier life may have been killed before its first rows, with which settings are written.
        self._config = {**self._run.settings, **self._run.tags, "_Created": created}
        return handed

    def log(self, rows: Sequence[LoggedRow]) -> None:
        """Write the rows; those of steps and tests that are there already, as behind a kill, are left out."""
        SQLiteStorage.bulk_log(
            _PROJECT,
            self._name,
            [dict(row.values) for row in rows],
            steps=[row.step for row in rows],
            config=self._config,
            log_ids=[None if row.kind == "own" else f"{self._id}-{row.kind}-{row.step}" for row in rows],
            run_id=self._id,
        )
        self._config = None

    def end(self, state: State) -> None:
        """Do nothing: all is written, and trackio's runs have no states."""
