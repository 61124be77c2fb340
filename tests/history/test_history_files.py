"""Histories in files: what was told last is there, and half a line of a process that was killed is left out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from support.commands import run_command
from support.histories import Shape, histories_of, shapes

from taihu.core.base.errors import ConfigError
from taihu.core.history.files import HistoryFile, read_histories
from taihu.core.history.recording import Recorder
from taihu.core.history.records import Begin, End, Push, Record, Skip
from taihu.core.job import Job
from taihu.core.settings import RunSettings

SHAPE = Shape(1, 2, 1, (20, 30), compressed=True, lives=((0, 3), (2, 5)))
BEGIN = Begin("worker 0", 7, 0, servers=1, workers=1, zero=1)


def write(folder: Path, histories: dict[str, list[Record]]) -> None:
    for member, records in histories.items():
        with HistoryFile(folder, member) as file:
            for record in records:
                file.add(record)


@given(shapes())
def test_what_is_read_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, shape: Shape) -> None:
    folder, histories = tmp_path_factory.mktemp("history"), histories_of(shape)
    write(folder, histories)
    assert read_histories(folder) == [histories[member] for member in sorted(histories)]


def test_half_a_line_of_who_was_killed_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    write(tmp_path, {"worker 0": [BEGIN, Skip(1)]})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert read_histories(tmp_path) == [[BEGIN]]
    write(tmp_path, {"worker 0": [BEGIN, End(4)]})
    assert read_histories(tmp_path) == [[BEGIN, BEGIN, End(4)]]


@pytest.mark.parametrize("damage", [b"{", b'{"kind":"skip"}', b'{"kind":"none","step":1}', b"\xff"])
def test_a_line_that_is_no_record_is_named(damage: bytes, tmp_path: Path) -> None:
    write(tmp_path, {"worker 0": [BEGIN, Skip(1)]})
    path = tmp_path / "worker-0.jsonl"
    path.write_bytes(path.read_bytes() + damage + b"\n" + b'{"kind":"skip","step":2}\n')
    with pytest.raises(ConfigError, match=r"worker-0\.jsonl, line 4: no record of a history"):
        read_histories(tmp_path)


def test_a_folder_without_histories_is_told(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match=r"no history there; train with --set run\.history=history"):
            read_histories(folder)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="name a folder that can be written"):
        HistoryFile(tmp_path / "file" / "history", "worker 0")


def test_a_disk_that_fails_ends_the_history_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with HistoryFile(tmp_path, "worker 0") as file:
        file.add(BEGIN)

        def full(handle: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            file.add(Skip(1))
        file.add(Skip(2))
    assert read_histories(tmp_path) == [[BEGIN]]
    assert capsys.readouterr().out.count("the history ends") == 1


def test_who_records_nothing_is_asked_for_nothing() -> None:
    def fail() -> None:
        raise AssertionError

    recorder = Recorder.off()
    assert not recorder.enabled
    nothing: Callable[..., None] = fail
    with recorder.updating(1, 0, nothing, nothing, nothing, nothing):  # type: ignore[arg-type]
        pass
    recorder.add(BEGIN)
    assert Job().history_folder is None
    assert Job(run=RunSettings(history=Path("none"))).history_folder is None


def test_the_command_says_what_was_checked_and_what_is_wrong_first(tmp_path: Path) -> None:
    histories = histories_of(SHAPE)
    write(tmp_path / "run" / "history", histories)
    whole = run_command("taihu", "dev", "history", "run", folder=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.splitlines() == [
        f"history         {sum(map(len, histories.values()))} records of 3 members in 2 generations",
        "steps           1 to 5: nothing lost, nothing twice, in order",
    ]
    line = next(n for n, each in enumerate(histories["worker 1"]) if isinstance(each, Push))
    del histories["worker 1"][line]
    write(tmp_path / "wrong", histories)
    wrong = run_command("taihu", "dev", "history", "wrong", folder=tmp_path)
    assert wrong.returncode == 1
    assert wrong.stderr == "error: wrong: step 1, group 0, worker 1: no push\n"
    assert run_command("taihu", "dev", "history", "none", folder=tmp_path).returncode == 2
