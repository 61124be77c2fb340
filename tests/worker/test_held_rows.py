"""Rows of steps in memory that outlives a process: tables have them although nobody wrote them in time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from taihu.worker.reporting.held_rows import HeldRows
from taihu.worker.reporting.run_log import CsvTables, RunLog
from taihu.worker.training.progress import Evaluation, StepSample

SAMPLE = StepSample(0.5, 0.25, 0.125, 0.0, 0.0, 0.0625, 0.03125, 10, 20)


def opened(folder: Path) -> HeldRows:
    folder.mkdir(exist_ok=True)
    rows = HeldRows.open(folder)
    assert rows is not None
    return rows


class Logs:
    """Logs whose threads write nothing before they end, of processes that may be killed before."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self._folder = folder
        self._ending = ending

    def open(self, held: HeldRows | None, begun_after: int = 0) -> RunLog:
        tables = CsvTables(self._folder, begun_after)
        self._ending.callback(tables.close)
        log = RunLog([tables], steps_per_epoch=4, learning_rate=lambda step: 1.0 / step, interval_s=1e3, held=held)
        log.goes_on(begun_after)
        return log


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    with ExitStack() as ending:
        yield Logs(tmp_path, ending)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "steps.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_is_what_was_put_and_lacks_what_was_not(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    rows.put({"step": 3, "epoch": 1, "worker_0_loss": 0.1 + 0.2})
    rows.put({"step": 5, "epoch": 2, "sent_bytes": 2**40 + 1, "loss_scale": 65536.0})
    assert rows.between(1, 9) == [
        {"step": 3, "epoch": 1, "worker_0_loss": 0.1 + 0.2},
        {"step": 5, "epoch": 2, "sent_bytes": 2**40 + 1, "loss_scale": 65536.0},
    ]
    assert rows.between(4, 4) == []
    rows.put({"step": 3, "epoch": 1, "worker_0_loss": 1.0})
    assert rows.between(3, 3) == [{"step": 3, "epoch": 1, "worker_0_loss": 1.0}]


def test_a_successor_finds_the_last_rows(tmp_path: Path) -> None:
    former = opened(tmp_path)
    for step in range(1, 5001):
        former.put({"step": step, "worker_0_loss": float(step)})
    found = opened(tmp_path).between(1, 5000)
    assert [row["step"] for row in found] == list(range(5001 - len(found), 5001))
    assert len(found) >= 2000


def test_only_a_row_with_its_times_is_of_a_completed_step(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    assert rows.newest == 0
    rows.put({"step": 7, "step_seconds": 0.5})
    rows.put({"step": 8})
    assert rows.newest == 7


def test_what_a_killed_process_had_not_written_is_in_the_table(logs: Logs, tmp_path: Path) -> None:
    """It had written two steps, completed two more, and computed another one, which the others completed."""
    killed = logs.open(opened(tmp_path / "memory"))
    for step in range(1, 5):
        killed.computed(step, 0.5)
        killed.stepped(step, SAMPLE, 1.0)
        if step == 2:
            killed.flush()
    killed.computed(5, 0.75)
    with logs.open(opened(tmp_path / "memory"), begun_after=5) as log:
        assert log.made_again == 0
        log.stepped(6, SAMPLE, 1.0)
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["worker_0_loss"] for row in rows] == ["0.5", "0.5", "0.5", "0.5", "0.75", "0.5"]
    assert [row["step_seconds"] for row in rows] == ["0.250000"] * 4 + ["", "0.250000"]
    assert [(row["epoch"], row["learning_rate"]) for row in rows[3:5]] == [("1", "0.25"), ("2", "0.2")]


@pytest.mark.parametrize("holds", [True, False])
def test_steps_that_are_made_again_are_counted(holds: bool, logs: Logs, tmp_path: Path) -> None:
    """Of the rows that were written, and of those that were held."""
    memory = opened(tmp_path / "memory") if holds else None
    killed = logs.open(memory)
    for step in range(1, 8):
        killed.stepped(step, SAMPLE, 1.0)
        if step == 5:
            killed.flush()
    log = logs.open(memory, begun_after=3)
    assert log.made_again == (4 if holds else 2)
    assert [int(row["step"]) for row in rows_of(tmp_path)] == [1, 2, 3]


def test_a_test_that_was_lost_is_known_to_be(logs: Logs) -> None:
    with logs.open(None) as log:
        log.stepped(4, SAMPLE, 1.0)
        log.evaluated(Evaluation(4, 1, 1.0, 1.0, 1.0, 0.5, {"accuracy": 0.5}))
        log.stepped(8, SAMPLE, 1.0)
    assert logs.open(None, begun_after=4).has_test(4)
    assert not logs.open(None, begun_after=8).has_test(8)
    assert RunLog([], steps_per_epoch=4, learning_rate=lambda _: 1.0).has_test(8)


def test_without_room_there_are_no_rows_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows").write_bytes(b"of another version")
    with capture_logs() as told:
        assert HeldRows.open(tmp_path) is None
    assert [each["event"] for each in told] == ["no row is held in memory"]
    assert HeldRows.open(None) is None
