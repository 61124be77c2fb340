"""Rows of a run on their way to a logger: by a thread of its own, so that nothing waits for it, and nothing fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from taihu.core.base.words import one_line
from taihu.core.job.loggers import Kind, LoggedRow, Logger, State
from taihu.core.system.clocks import monotonic
from taihu.core.system.queues import Full, Queue
from taihu.core.system.threads import Event, spawn
from taihu.worker.reporting.loggers.earlier_rows import rows_in
from taihu.worker.reporting.run_rows import EventNote, OwnNote, Scalars, logged_step, logged_test

_WAITING: Final = 10_000
_AT_ONCE: Final = 1_000
_PATIENCE_S: Final = 20.0
_STATES: Final[Mapping[str, State]] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}
_GOES_ON: Final = "the run goes on without it"


class Handed:
    """The last steps, by kind, that a logger has taken in, in a file that a kill of this process leaves whole."""

    _ROOM = 120

    def __init__(self, path: Path) -> None:
        self._path = path
        self.steps: dict[Kind, int] = {}
        with suppress(OSError, ValueError):
            self.steps = json.loads(path.read_text(encoding="utf-8"))
        self._file = path.open("wb", buffering=0)
        self.note([])

    def note(self, rows: Iterable[LoggedRow]) -> None:
        """The logger has taken in the rows."""
        for row in rows:
            self.steps[row.kind] = max(self.steps.get(row.kind, 0), row.step)
        self._file.seek(0)
        self._file.write(json.dumps(self.steps).ljust(self._ROOM).encode())

    def close(self) -> None:
        """Nothing is noted any more."""
        self._file.close()


class _GoesOn(int):
    """The step behind which a run goes on: earlier rows that the logger lacks are in tables."""


class HandedOn:
    """A `ScalarWriter` that hands rows to a logger.

    At most 10,000 rows wait, what is more is dropped and counted. At the end of the run the logger has 20 seconds.

    Args:
        name: of the logger.
        make: imports and makes it, in the thread.
        kept: the folder of what stays of it.
        tables: folders of this run and of those that it goes on from, with the rows of earlier lives.
        say: is told of what goes wrong, and of rows that were dropped.
        patience_s: the time that the logger has at the end.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Logger],
        kept: Path,
        tables: tuple[Path, ...],
        say: Callable[[str], None],
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._name, self._make, self._kept, self._tables, self._say = name, make, kept, tables, say
        self._patience_s = patience_s
        self._rows: Queue[LoggedRow | _GoesOn | None] = Queue(_WAITING)
        self._had: Mapping[Kind, int] = {}
        self._last: dict[Kind, int] = {}
        self._state: State = "interrupted"
        self._is_given_up = False
        self._dropped = 0
        self._is_made = Event()
        self._thread = spawn(f"logger-{name}", self._run)

    def await_made(self, timeout_s: float) -> None:
        """Return when the logger has been imported and made, or could not be, or the time is over.

        Imports hold what Python's threads share: beside the first steps they would be measured as part of these.
        """
        self._is_made.wait(timeout_s)

    def goes_on(self, begun_after: int) -> None:
        """The run goes on behind a step."""
        self._put(_GoesOn(begun_after))

    def add_step(self, row: Scalars) -> None:
        """Hand on a row of a step."""
        self._put(logged_step(row))

    def add_test(self, row: Scalars) -> None:
        """Hand on a row of a test."""
        self._put(logged_test(row))

    def add_own(self, note: OwnNote) -> None:
        """Hand on a script's own values."""
        self._put(LoggedRow("own", note.step, note.values))

    def add_event(self, event: EventNote) -> None:
        """Take in how the run has ended, if this says so."""
        self._state = _STATES.get(event.event, self._state)

    def flush(self) -> None:
        """Nothing: the thread hands on by itself."""

    def close(self) -> None:
        """Hand on what is left, and tell the logger how the run has ended; waits for it, but not for long."""
        ends = monotonic() + self._patience_s
        if not self._is_given_up:
            with suppress(Full):
                self._rows.put(None, timeout=self._patience_s)
        self._thread.join(max(0.0, ends - monotonic()))
        if self._thread.is_alive():
            self._give_up(f"it is not done {self._patience_s:g} s behind the end of the run, which waits no longer")
        if self._dropped and not self._is_given_up:
            self._say(f"run.loggers: {self._name}: {self._dropped:,} rows were dropped, it was too slow for them")

    def _put(self, row: LoggedRow | _GoesOn) -> None:
        if self._is_given_up:
            return
        try:
            self._rows.put_nowait(row)
        except Full:
            self._dropped += 1
            if self._dropped == 1:
                self._say(
                    f"run.loggers: {self._name}: it is too slow, {_WAITING:,} rows wait for it; others are dropped"
                )

    def _give_up(self, why: str) -> None:
        self._is_given_up = True
        self._say(f"run.loggers: {self._name}: {why}; {_GOES_ON}")

    def _run(self) -> None:
        try:
            logger = self._make()
            self._is_made.set()
            with closing(Handed(self._kept / "handed")) as handed:
                self._had = logger.begin(dict(handed.steps))
                for rows in self._batches():
                    logger.log(rows)
                    handed.note(rows)
                logger.end(self._state)
        except Exception as error:
            self._give_up(one_line(str(error)).rstrip(".") or type(error).__name__)
        finally:
            self._is_made.set()

    def _batches(self) -> Iterator[list[LoggedRow]]:
        """The rows that the logger lacks, as they come, until the end."""
        rows: list[LoggedRow] = []
        for row in self._flowing():
            if row is not None and self._lacks(row):
                rows.append(row)
            if rows and (row is None or len(rows) == _AT_ONCE):
                yield rows
                rows = []
        if rows:
            yield rows

    def _flowing(self) -> Iterator[LoggedRow | None]:
        """Rows, and None where the next one is not there yet."""
        while True:
            if self._rows.empty():
                yield None
            row = self._rows.get()
            if row is None:
                return
            if isinstance(row, _GoesOn):
                yield from rows_in(self._tables, self._had, row)
            else:
                yield row

    def _lacks(self, row: LoggedRow) -> bool:
        """Whether the logger has not had this row: tables of earlier lives may have what comes again."""
        last = self._last.get(row.kind, -1)
        if row.step <= self._had.get(row.kind, -1) or (row.kind != "own" and row.step <= last):
            return False
        self._last[row.kind] = row.step
        return True
