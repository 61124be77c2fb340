"""Steps and tests of a run, written into its folder while it goes on, by a thread of its own."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Final, NamedTuple, Protocol, Self

import structlog

from taihu.core.base.errors import WriteError
from taihu.core.base.whole_file import writing
from taihu.core.job.run_folder import add_events
from taihu.core.system.threads import Event, Lock, make_thread
from taihu.core.wire.base.clock import WallClock
from taihu.worker.reporting.held_rows import HeldRows
from taihu.worker.reporting.run_rows import (
    STEP_COLUMNS,
    EventNote,
    OwnNote,
    Scalars,
    StepNote,
    begun_scalars,
    epoch_scalars,
    step_scalars,
)
from taihu.worker.training.progress import Evaluation, StepSample

_INTERVAL_S = 1.0
_LOSS: Final = "worker_0_loss"
_GOES_ON: Final = "the run goes on without it"


def _warn(text: str) -> None:
    structlog.get_logger().warning(text)


class ScalarWriter(Protocol):
    """A place that rows go to; called by one thread."""

    def add_step(self, row: Scalars) -> None:
        """Take in a row of `step_scalars`."""

    def add_test(self, row: Scalars) -> None:
        """Take in a row of `epoch_scalars`; all of a run have the same keys."""

    def add_own(self, note: OwnNote) -> None:
        """Take in a script's own values."""

    def add_event(self, event: EventNote) -> None:
        """Take in what happened."""

    def flush(self) -> None:
        """Let others read what there is."""

    def close(self) -> None:
        """Write what is left; nothing comes after."""


class LoggerWriter(ScalarWriter, Protocol):
    """A place that keeps the rows of all lives of a run elsewhere."""

    def goes_on(self, begun_after: int) -> None:
        """The run goes on behind a step: rows up to there that this place lacks are in the tables."""


class CsvTables:
    """`steps.csv`, `epochs.csv` and `events.jsonl` in a folder.

    Rows that are there up to step `begun_after` are of this run, which goes on behind it; later ones come again.

    Attributes:
        last_step, last_test: the step of the last row of each table; None where there is none.
        former_step: of the last row of a step that was there, 0 for none: the run has made it already.
        untested_losses: of the rows that stay since the last test.
    """

    def __init__(self, folder: Path, begun_after: int = 0) -> None:
        self._steps_path, self._epochs_path = paths = folder / "steps.csv", folder / "epochs.csv"
        with writing(folder):
            steps, tests = (_keep_rows(path, begun_after) for path in paths)
        self.last_step, self.former_step = steps.last, steps.former
        self.last_test = tests.last
        rows = zip(steps.steps, steps.losses, strict=True)
        self.untested_losses = [float(loss) for step, loss in rows if loss and step > (tests.last or 0)]
        with writing(self._steps_path):
            self._steps_file = self._steps_path.open("a", encoding="utf-8", newline="")
            self._steps = csv.writer(self._steps_file, lineterminator="\n")
            if self.last_step is None:
                self._steps.writerow(STEP_COLUMNS)
        self._epochs_file: IO[str] | None = None
        self._folder = folder

    def cut(self, begun_after: int) -> None:
        """Remove the rows of steps behind `begun_after`: they come again."""
        with writing(self._steps_path):
            self._steps_file.close()
            self.last_step = _keep_rows(self._steps_path, begun_after).last
            self._steps_file = self._steps_path.open("a", encoding="utf-8", newline="")
            self._steps = csv.writer(self._steps_file, lineterminator="\n")
            if self.last_step is None:
                self._steps.writerow(STEP_COLUMNS)

    def add_step(self, row: Scalars) -> None:
        """Write a line of `steps.csv`; microseconds are enough for a time. What the row has not stays empty."""
        times = {name: f"{value:.6f}" for name, value in row.items() if name.endswith("_seconds")}
        with writing(self._steps_path):
            self._steps.writerow({**row, **times}.get(name, "") for name in STEP_COLUMNS)

    def add_test(self, row: Scalars) -> None:
        """Write a line of `epochs.csv`; the first row says what the columns are."""
        with writing(self._epochs_path):
            self._epochs_file = self._epochs_file or self._epochs_path.open("a", encoding="utf-8", newline="")
            table = csv.writer(self._epochs_file, lineterminator="\n")
            if self.last_test is None:
                table.writerow(row)
            self.last_test = int(row["step"])
            table.writerow(row.values())

    def add_own(self, note: OwnNote) -> None:
        """Nothing: tables have the columns of every run."""

    def add_event(self, event: EventNote) -> None:
        """Write a line of `events.jsonl`; there are few of them."""
        when = datetime.fromtimestamp(event.time_s, UTC).isoformat(timespec="milliseconds")
        add_events(self._folder, [{"time": when, "step": event.step, "event": event.event, **event.facts}])

    def flush(self) -> None:
        """Let others read what there is."""
        with writing(self._steps_path):
            self._steps_file.flush()
        if self._epochs_file is not None:
            with writing(self._epochs_path):
                self._epochs_file.flush()

    def close(self) -> None:
        """Write what is left."""
        with ExitStack() as closing:
            if self._epochs_file is not None:
                closing.enter_context(writing(self._epochs_path))
                closing.callback(self._epochs_file.close)
            closing.enter_context(writing(self._steps_path))
            closing.callback(self._steps_file.close)


class _Kept(NamedTuple):
    """Rows of a table that stay: their steps and, where it has these, losses; and the last step that was there."""

    steps: list[int]
    losses: list[str]
    former: int

    @property
    def last(self) -> int | None:
        """The step of the last row; None for none."""
        return self.steps[-1] if self.steps else None


def _keep_rows(path: Path, last_step: int) -> _Kept:
    """Remove the rows of steps behind `last_step`, and a row that is not whole; all where none stays."""
    if not path.exists():
        return _Kept([], [], 0)
    columns, *lines = path.read_text(encoding="utf-8").split("\n")
    names = columns.split(",")
    # Of a process that was killed there may be nothing, or half of the columns; behind the last line break there is
    # nothing, or a row that was cut off.
    whole = lines[:-1] if "step" in names else []
    step_at = names.index("step") if whole else 0
    loss_at = names.index(_LOSS) if _LOSS in names else None
    fields = ((line, line.split(",")) for line in whole)
    known = [(line, int(row[step_at]), "" if loss_at is None else row[loss_at]) for line, row in fields]
    kept = [each for each in known if each[1] <= last_step]
    former = max((step for _, step, _ in known), default=0)
    if not (last_step and kept):
        path.unlink()
        return _Kept([], [], former)
    texts, steps, losses = map(list, zip(*kept, strict=True))
    path.write_text("\n".join([columns, *texts, ""]), encoding="utf-8")
    return _Kept(steps, losses, former)


def open_writers(folder: Path | None, begun_after: int = 0, say: Callable[[str], None] = _warn) -> list[ScalarWriter]:
    """The tables of a run in its folder; none where it has no folder.

    See `CsvTables` for `begun_after`. A file that cannot be made is left out, and `say` is told of it.
    """
    if folder is None:
        return []
    try:
        return [CsvTables(folder, begun_after)]
    except WriteError as error:
        say(f"{error}; {_GOES_ON}")
        return []


class RunLog:
    """Takes in steps and tests without waiting for a disk; a context manager, at whose end everything is written.

    A file that cannot be written is given up with a warning: the run goes on without it.

    Args:
        writers: where the rows go.
        steps_per_epoch: how many steps are a pass over the data; None of a script's own loop, see `step_scalars`.
        learning_rate: the rate of a step.
        interval_s: how often it is written.
        say: is told of a file that cannot be written.
        wall: the time of events.
        held: has the rows of steps whose writing a kill may prevent.
        loggers: that rows are handed to.
    """

    def __init__(
        self,
        writers: Sequence[ScalarWriter],
        *,
        steps_per_epoch: int | None,
        learning_rate: Callable[[int], float],
        interval_s: float = _INTERVAL_S,
        wall: WallClock | None = None,
        say: Callable[[str], None] = _warn,
        held: HeldRows | None = None,
        loggers: Sequence[LoggerWriter] = (),
    ) -> None:
        self._say = say
        self._held = held if writers or loggers else None
        self.untested_losses: list[float] = []
        """Losses of the steps since the last test that earlier lives have made."""
        self.made_again = 0
        """Steps that had been completed, and are made again: none where the run goes on from the last one."""
        self._writers = [*writers, *loggers]
        self._loggers = loggers
        self._steps_per_epoch = steps_per_epoch
        self._learning_rate = learning_rate
        self._interval_s = interval_s
        self._wall = wall or WallClock()
        self._notes: deque[StepNote | Scalars | Evaluation | OwnNote | EventNote] = deque()
        self._step = 0
        self._ends = Event()
        self._writing = Lock()
        self._thread = make_thread("run-log", self._run)

    def __enter__(self) -> Self:
        if self._writers:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self._ends.set()
            self._thread.join()

    @property
    def pending(self) -> int:
        """Number of notes that wait to be written."""
        return len(self._notes)

    def stepped(self, step: int, sample: StepSample, loss_scale: float) -> None:
        """A step has ended."""
        self._step = step
        if self._writers:
            note = StepNote(step, sample, loss_scale)
            if self._held is None:
                self._notes.append(note)
            else:
                row = self._row(note)
                self._held.put(row)
                self._notes.append(row)

    @property
    def _tables(self) -> CsvTables | None:
        return next((each for each in self._writers if isinstance(each, CsvTables)), None)

    def computed(self, step: int, loss: float) -> None:
        """The backward of a step has ended, which others may end without this process."""
        if self._held is not None and self._steps_per_epoch is not None:
            self._held.put(begun_scalars(step, loss, self._steps_per_epoch, self._learning_rate))

    def goes_on(self, begun_after: int) -> None:
        """The run goes on behind a step: rows that a kill has kept from the tables are written."""
        self._loggers_go_on(begun_after)
        if (tables := self._tables) is None:
            return
        former = tables.former_step
        self.untested_losses = [*tables.untested_losses]
        if self._held is not None:
            held = self._held.between((tables.last_step or 0) + 1, begun_after)
            self._notes.extend(held)
            self.untested_losses += [row[_LOSS] for row in held if _LOSS in row]
            former = max(former, self._held.newest)
        self.made_again = max(0, former - begun_after)

    def cut(self, begun_after: int) -> None:
        """The run goes on behind a step: rows of later ones, which are written already, come again."""
        with self._writing:
            self._write_notes()
            if (tables := self._tables) is not None:
                with self._given_up_on_failure(tables):
                    tables.cut(begun_after)
        if not self._step:
            self._loggers_go_on(begun_after)

    def _loggers_go_on(self, begun_after: int) -> None:
        if begun_after:
            for logger in self._loggers:
                logger.goes_on(begun_after)

    def has_test(self, step: int) -> bool:
        """Whether the table of tests has that of a step, or there is no table of this run's own steps."""
        tables = self._tables
        if tables is None or (tables.last_step is None and (self._held is None or not self._held.newest)):
            return True
        return tables.last_test == step

    def evaluated(self, evaluation: Evaluation) -> None:
        """The model was tested."""
        if self._writers:
            self._notes.append(evaluation)

    def logged(self, values: Mapping[str, float], step: int) -> None:
        """A script has values of its own for the loggers."""
        if self._loggers:
            self._notes.append(OwnNote(step, values))

    def happened(self, event: str, **facts: float | str) -> None:
        """Something happened after the last step: `event` names it, `facts` say more."""
        if self._writers:
            self._notes.append(EventNote(event, facts, self._step, self._wall.now()))

    def flush(self) -> None:
        """Write what there is now; waits for the disk, and may be called by any thread."""
        self._write()

    def _run(self) -> None:
        while not self._ends.wait(self._interval_s):
            self._write()
        self._write()
        for writer in tuple(self._writers):
            with self._given_up_on_failure(writer):
                writer.close()

    def _write(self) -> None:
        with self._writing:
            self._write_notes()

    def _write_notes(self) -> None:
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        if not notes:
            return
        told = [self._row(note) if isinstance(note, StepNote) else note for note in notes]
        for writer in tuple(self._writers):
            with self._given_up_on_failure(writer):
                for note in told:
                    _add(writer, note)
                writer.flush()

    def _row(self, note: StepNote) -> Scalars:
        return step_scalars(note, self._steps_per_epoch, self._learning_rate)

    @contextmanager
    def _given_up_on_failure(self, writer: ScalarWriter) -> Iterator[None]:
        try:
            yield
        except (OSError, WriteError) as error:
            self._writers.remove(writer)
            with suppress(OSError, WriteError):
                writer.close()
            self._say(f"{error}; {_GOES_ON}")


def _add(writer: ScalarWriter, note: Scalars | Evaluation | OwnNote | EventNote) -> None:
    match note:
        case dict():
            writer.add_step(note)
        case Evaluation():
            writer.add_test(epoch_scalars(note))
        case OwnNote():
            writer.add_own(note)
        case _:
            writer.add_event(note)
