"""Steps and tests as files: each number is found again where it belongs, while the run goes on and after."""

from __future__ import annotations

import csv
import json
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from taihu.core.base.errors import RunError
from taihu.core.job.loggers import LoggedRun
from taihu.core.job.schedule import learning_rate
from taihu.core.settings import OptimizerSettings
from taihu.worker.reporting.loggers.handing import HandedOn
from taihu.worker.reporting.loggers.to_tensorboard import EventFile
from taihu.worker.reporting.run_log import CsvTables, RunLog, ScalarWriter, open_writers
from taihu.worker.reporting.run_rows import STEP_COLUMNS, Scalars
from taihu.worker.training.progress import Evaluation, StepSample

SECONDS = st.floats(0, 1000)
SAMPLES = st.builds(
    StepSample,
    loss=st.floats(-5, 5) | st.just(float("inf")),
    step_seconds=SECONDS,
    compute_seconds=SECONDS,
    compress_seconds=SECONDS,
    compress_wait_seconds=SECONDS,
    exchange_seconds=SECONDS,
    wait_seconds=SECONDS,
    sent_bytes=st.integers(0, 10**12),
    received_bytes=st.integers(0, 10**12),
    selected_ratio=st.floats(0, 1),
    steady=st.booleans(),
)
SAMPLE = StepSample(0.5, 0.02, 0.01, 0.0, 0.0, 0.005, 0.001, 100, 200)
STEP_DECAY = OptimizerSettings(learning_rate=0.1, schedule="step", milestones=(2, 4), gamma=0.5)
PER_EPOCH = 3


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def events(folder: Path) -> Iterator[Event]:
    """The records of the one event file, by the format of TFRecord: length, its checksum, data, its checksum."""
    (path,) = folder.glob("events.out.tfevents.*")
    content = path.read_bytes()
    while content:
        (length,) = struct.unpack_from("<Q", content)
        data = content[12 : 12 + length]
        assert struct.unpack_from("<I", content, 8) == (masked_crc32c(content[:8]),)
        assert struct.unpack_from("<I", content, 12 + length) == (masked_crc32c(data),)
        yield Event.FromString(data)
        content = content[16 + length :]


def event_file(folder: Path) -> HandedOn:
    run = LoggedRun("run", folder, folder, {}, {})
    return HandedOn("tensorboard", lambda: EventFile(run), folder, (folder,), print)


def run_log(*writers: ScalarWriter, interval_s: float = 1000.0) -> RunLog:
    return RunLog(
        writers,
        steps_per_epoch=PER_EPOCH,
        learning_rate=partial(learning_rate, STEP_DECAY),
        interval_s=interval_s,
    )


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(SAMPLES, st.sampled_from([1.0, 65536.0])), max_size=8))
def test_every_step_is_a_row_and_an_event(notes: list[tuple[StepSample, float]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with run_log(CsvTables(folder), event_file(folder)) as log:
            for step, (sample, scale) in enumerate(notes, 1):
                log.stepped(step, sample, scale)
        table = rows(folder / "steps.csv")
        assert (folder / "steps.csv").read_text().splitlines()[0] == ",".join(STEP_COLUMNS)
        assert [int(row["step"]) for row in table] == list(range(1, len(notes) + 1))
        told = {event.step: {v.tag: v.simple_value for v in event.summary.value} for event in events(folder)}
        for step, ((sample, scale), row) in enumerate(zip(notes, table, strict=True), 1):
            assert int(row["epoch"]) == (step - 1) // PER_EPOCH + 1
            rate = 0.1 * 0.5 ** ((step > 2) + (step > 4))
            assert float(row["learning_rate"]) == pytest.approx(rate)
            assert float(row["worker_0_loss"]) == sample.loss
            assert (int(row["sent_bytes"]), int(row["received_bytes"])) == (sample.sent_bytes, sample.received_bytes)
            assert (float(row["selected_ratio"]), float(row["loss_scale"])) == (sample.selected_ratio, scale)
            for part in ("step", "compute", "compress", "compress_wait", "exchange", "wait"):
                seconds = getattr(sample, f"{part}_seconds")
                assert float(row[f"{part}_seconds"]) == pytest.approx(seconds, abs=1e-6)
                assert told[step][f"seconds/{part}"] == pytest.approx(seconds)
            assert told[step]["loss/worker_0"] == pytest.approx(sample.loss)
            assert told[step]["learning_rate"] == pytest.approx(rate)
            assert told[step]["exchange/sent_bytes"] == pytest.approx(sample.sent_bytes)


def test_every_test_is_a_row_and_an_event(tmp_path: Path) -> None:
    tested = [
        Evaluation(3, 1, 0.25, 1.5, 1.25, None, {"rmse": 0.5}),
        Evaluation(6, 2, 0.25, 0.75, 0.5, None, {"rmse": 0.875}),
    ]
    with run_log(CsvTables(tmp_path), event_file(tmp_path)) as log:
        for evaluation in tested:
            log.evaluated(evaluation)
    table = rows(tmp_path / "epochs.csv")
    assert [(row["epoch"], row["step"]) for row in table] == [("1", "3"), ("2", "6")]
    assert [(float(row["train_loss"]), float(row["test_loss"])) for row in table] == [(1.5, 1.25), (0.75, 0.5)]
    assert [float(row["test_rmse"]) for row in table] == [0.5, 0.875]
    told = {event.step: {v.tag: v.simple_value for v in event.summary.value} for event in events(tmp_path)}
    assert told[6] == {"epoch": 2, "loss/train_mean": 0.75, "test/loss": 0.5, "test/rmse": 0.875}


def test_what_happened_is_a_line_with_the_step_before_it(tmp_path: Path) -> None:
    with run_log(CsvTables(tmp_path), event_file(tmp_path)) as log:
        log.happened("training", workers=3)
        log.stepped(1, SAMPLE, 1.0)
        log.happened("planned", predicted_seconds=0.5)
    told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    times = [datetime.fromisoformat(each.pop("time")) for each in told]
    assert told == [
        {"step": 0, "event": "training", "workers": 3},
        {"step": 1, "event": "planned", "predicted_seconds": 0.5},
    ]
    assert times == sorted(times)
    assert times[0].utcoffset() == timedelta(0)


class Waking(CsvTables):
    """Tells when others can read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.flushed = threading.Event()

    def flush(self) -> None:
        super().flush()
        self.flushed.set()


def test_the_table_is_read_while_the_run_goes_on(tmp_path: Path) -> None:
    tables = Waking(tmp_path)
    with run_log(tables, interval_s=0.01) as log:
        log.stepped(1, SAMPLE, 1.0)
        assert tables.flushed.wait(120)
        assert [row["step"] for row in rows(tmp_path / "steps.csv")] == ["1"]


def test_a_full_disk_ends_the_table_and_not_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(CsvTables):
        def add_step(self, row: Scalars) -> None:
            raise OSError(28, "No space left on device")

    (tmp_path / "other").mkdir()
    with run_log(Full(tmp_path), CsvTables(tmp_path / "other")) as log:
        log.stepped(1, SAMPLE, 1.0)
    assert len(rows(tmp_path / "other" / "steps.csv")) == 1
    assert "No space left on device" in "".join(capsys.readouterr())


def test_what_fails_in_the_run_leaves_the_rows_until_then(tmp_path: Path) -> None:
    def fail() -> None:
        with run_log(*open_writers(tmp_path)) as log:
            log.stepped(1, SAMPLE, 1.0)
            raise RunError("a worker was lost")

    with pytest.raises(RunError):
        fail()
    assert len(rows(tmp_path / "steps.csv")) == 1
    assert not (tmp_path / "epochs.csv").exists()


def test_without_a_folder_nothing_is_kept() -> None:
    assert open_writers(None) == []
    with run_log() as log:
        log.stepped(1, SAMPLE, 1.0)
        assert not log.pending


def numbers_of(path: Path) -> list[int]:
    with path.open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def note_steps(folder: Path, steps: range, begun_after: int = 0) -> None:
    with run_log(CsvTables(folder, begun_after)) as log:
        for step in steps:
            log.stepped(step, SAMPLE, 1.0)
            if step % 2 == 0:
                log.evaluated(Evaluation(step, step // 2, 1.0, 1.0, 1.0, 0.5, {"accuracy": 0.5}))
        log.flush()
        assert numbers_of(folder / "steps.csv")[-1] == steps[-1]


def test_the_tables_of_a_run_that_goes_on_have_every_step_once(tmp_path: Path) -> None:
    note_steps(tmp_path, range(1, 8))
    with (tmp_path / "steps.csv").open("a") as file:
        file.write("8,1,0.2")  # it was killed while it wrote
    note_steps(tmp_path, range(5, 10), begun_after=4)
    assert numbers_of(tmp_path / "steps.csv") == list(range(1, 10))
    assert numbers_of(tmp_path / "epochs.csv") == [2, 4, 6, 8]


def test_the_place_from_which_a_run_goes_on_may_be_known_later(tmp_path: Path) -> None:
    note_steps(tmp_path, range(1, 8))
    with run_log(CsvTables(tmp_path, sys.maxsize)) as log:
        assert numbers_of(tmp_path / "steps.csv") == list(range(1, 8))
        log.cut(5)
        log.stepped(6, SAMPLE, 1.0)
        log.flush()
        assert numbers_of(tmp_path / "steps.csv") == list(range(1, 7))
        log.cut(0)
        log.stepped(1, SAMPLE, 1.0)
    assert numbers_of(tmp_path / "steps.csv") == [1]


@pytest.mark.parametrize("left", ["", "ste", "step,epoch\n", "step,epoch\n7,1\n"])
def test_what_a_killed_run_has_left_of_a_table_is_no_hindrance(left: str, tmp_path: Path) -> None:
    for name in ("steps.csv", "epochs.csv"):
        (tmp_path / name).write_text(left)
    note_steps(tmp_path, range(4, 7), begun_after=3)
    assert numbers_of(tmp_path / "steps.csv") == [4, 5, 6]
    assert numbers_of(tmp_path / "epochs.csv") == [4, 6]
