"""A run in TensorBoard: an event file with the scalars of every step and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from taihu.core.base.whole_file import writing
from taihu.core.job.loggers import Kind, LoggedRow, LoggedRun, State
from taihu.core.wire.base.clock import WallClock


class EventFile:
    """A `Logger`; everything of one row is one event.

    tensorboardX's own `SummaryWriter` would queue one event for each scalar.
    """

    def __init__(self, run: LoggedRun) -> None:
        self._path = run.folder / "events"
        # Names have the second in them, and a life may be shorter than that.
        lives = len(list(run.folder.glob("events.out.tfevents.*")))
        with writing(self._path):
            self._file = EventsWriter(str(self._path), f".{lives:03d}" if lives else "")

    def begin(self, handed: Mapping[Kind, int]) -> Mapping[Kind, int]:
        """Have TensorBoard forget what a kill may have left of later steps: they come again, in this file."""
        if step := handed.get("step", 0):
            self._write(
                Event(wall_time=WallClock().now(), step=step + 1, session_log=SessionLog(status=SessionLog.START))
            )
        return handed

    def log(self, rows: Sequence[LoggedRow]) -> None:
        """Write the rows; others may read them then."""
        for row in rows:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in row.values.items()]
            self._write(Event(wall_time=WallClock().now(), step=row.step, summary=Summary(value=values)))
        with writing(self._path):
            self._file.flush()

    def end(self, state: State) -> None:
        """Write what is left; TensorBoard knows of no state."""
        with writing(self._path):
            self._file.close()

    def _write(self, event: Event) -> None:
        with writing(self._path):
            self._file.write_event(event)
