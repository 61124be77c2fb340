"""A run in TensorBoard: an event file with the scalars of every step and test."""

from __future__ import annotations

from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from taihu.core.base.whole_file import writing
from taihu.core.wire.base.clock import WallClock
from taihu.worker.reporting.run_rows import EventNote, Scalars

__all__ = ["EventFile"]

_NAMES = {
    "worker_0_loss": "loss/worker_0",
    "learning_rate": "learning_rate",
    "loss_scale": "loss_scale",
    "selected_ratio": "exchange/selected_ratio",
    "sent_bytes": "exchange/sent_bytes",
    "received_bytes": "exchange/received_bytes",
}


class EventFile:
    """A `ScalarWriter`; everything of one step is one event.

    tensorboardX's own `SummaryWriter` would queue one event for each scalar, on the thread that trains.
    """

    def __init__(self, folder: Path, wall: WallClock | None = None) -> None:
        self._wall = wall or WallClock()
        self._path = folder / "events"
        self._file = EventsWriter(str(self._path))

    def add_step(self, row: Scalars) -> None:
        """Write the row's values as one event."""
        scalars = {name: value for name, value in row.items() if name not in {"step", "epoch"}}
        self._add(int(row["step"]), {_step_tag(name): value for name, value in scalars.items()})

    def add_test(self, row: Scalars) -> None:
        """Write a test's values as one event, at the step after which the model was tested."""
        scalars = {name: value for name, value in row.items() if name not in {"step", "seconds"}}
        self._add(int(row["step"]), {_test_tag(name): value for name, value in scalars.items()})

    def add_event(self, event: EventNote) -> None:
        """Nothing: TensorBoard shows numbers."""

    def _add(self, step: int, scalars: Scalars) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        with writing(self._path):
            self._file.write_event(Event(wall_time=self._wall.now(), step=step, summary=Summary(value=values)))

    def flush(self) -> None:
        """Let others read what there is."""
        with writing(self._path):
            self._file.flush()

    def close(self) -> None:
        """Write what is left."""
        with writing(self._path):
            self._file.close()


def _step_tag(name: str) -> str:
    return _NAMES.get(name) or f"seconds/{name.removesuffix('_seconds')}"


def _test_tag(name: str) -> str:
    return {"train_loss": "loss/train_mean", "epoch": "epoch"}.get(name) or name.replace("test_", "test/", 1)
