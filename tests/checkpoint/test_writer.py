"""Parts are written beside the run, which goes on whatever the disk does."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from structlog.testing import capture_logs

from taihu.core.base.errors import MemberLostError, PeerUnreachableError, RunError, StaleError
from taihu.core.checkpoint.files import PartFile, open_part
from taihu.core.checkpoint.part import Elements, Part, State
from taihu.core.checkpoint.writer import PartWriter


def part_of(step: int) -> Part:
    values = np.full(1000, step, dtype=np.float32)
    return Part("server 0", step, State(Elements(np.array([[0, 1000]]), {"parameters": values})))


def test_what_was_taken_is_written_before_the_end(tmp_path: Path) -> None:
    stored: SimpleQueue[tuple[int, PartFile]] = SimpleQueue()
    with PartWriter(tmp_path, lambda step, file: stored.put((step, file))) as writer:
        writer.write(7, lambda: part_of(7))
    step, file = stored.get_nowait()
    assert (step, file.name) == (7, "server-0.safetensors")
    with open_part(tmp_path / "step-000007" / file.name) as part:
        assert part.read("shared", "parameters", 0, 3).tolist() == [7, 7, 7]


def test_a_part_that_comes_too_early_is_left_out_and_not_even_copied(tmp_path: Path) -> None:
    going_on, told = threading.Event(), threading.Event()

    def stored(step: int, _: PartFile) -> None:
        if step == 1:
            told.set()
            assert going_on.wait(120)

    def never() -> Part:
        raise AssertionError("the part was copied")

    with capture_logs() as logs:
        with PartWriter(tmp_path, stored) as writer:
            writer.write(1, lambda: part_of(1))
            assert told.wait(120)
            writer.write(2, never)
            going_on.set()
        assert [(log["event"], log["step"], log["reason"]) for log in logs] == [
            ("checkpoint left out", 2, "the one before is still being written")
        ]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


@pytest.mark.parametrize("error", [MemberLostError("UNAVAILABLE"), PeerUnreachableError("DEADLINE_EXCEEDED")])
def test_a_part_of_which_nobody_was_told_is_told_again(error: Exception, tmp_path: Path) -> None:
    """A connection that breaks left the last checkpoint out, although all of it was on the disk."""
    told: list[int] = []

    def store(step: int, _: PartFile) -> None:
        told.append(step)
        if len(told) < 3:
            raise error

    with capture_logs() as logs, PartWriter(tmp_path, store, told_within_s=120.0) as writer, writer.finished():
        writer.write(1, lambda: part_of(1))
    assert (told, logs) == ([1, 1, 1], [])


def test_nobody_is_told_again_where_the_run_fails(tmp_path: Path) -> None:
    told, left_out = threading.Event(), list[str]()

    def store(_: int, __: PartFile) -> None:
        told.set()
        raise MemberLostError("server 0 was lost")

    def fail() -> None:
        with PartWriter(tmp_path, store, lambda _, why: left_out.append(why), told_within_s=1e6) as writer:
            writer.write(1, lambda: part_of(1))
            assert told.wait(120)
            raise RunError("out of paper")

    with pytest.raises(RunError, match="out of paper"):
        fail()
    assert left_out == ["server 0 was lost"]


def test_nobody_is_told_again_by_a_process_that_has_to_end(tmp_path: Path) -> None:
    """A worker waited for its last parts, of which it told a coordinator that was known to be gone: it was stuck."""
    has_to_end, told, left_out = threading.Event(), list[int](), list[str]()

    def store(step: int, _: PartFile) -> None:
        told.append(step)
        has_to_end.set()
        raise MemberLostError("server 0 was lost")

    with (
        capture_logs() as logs,
        PartWriter(
            tmp_path, store, lambda _, why: left_out.append(why), told_within_s=1e6, has_to_end=has_to_end.is_set
        ) as writer,
    ):
        for step in (1, 2):
            with writer.finished():
                writer.write(step, lambda step=step: part_of(step))  # type: ignore[misc]
    assert (told, left_out) == ([1, 2], [])
    assert [(log["step"], log["reason"]) for log in logs] == [(1, "server 0 was lost"), (2, "server 0 was lost")]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RunError("the coordinator is gone")])
def test_the_run_goes_on_when_a_part_cannot_be_stored(error: Exception, tmp_path: Path) -> None:
    stored: SimpleQueue[int] = SimpleQueue()

    def store(step: int, _: PartFile) -> None:
        stored.put(step)
        if step == 1:
            raise error

    with capture_logs() as logs, PartWriter(tmp_path, store) as writer:
        writer.write(1, lambda: part_of(1))
        assert stored.get(timeout=120) == 1
        while stored.empty():
            writer.write(2, lambda: part_of(2))
    assert str(error) in [log["reason"] for log in logs]


def test_a_folder_that_cannot_be_made_is_told_and_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    left_out: list[tuple[int, str]] = []

    def told(step: int, why: str) -> None:
        left_out.append((step, why))
        raise RunError("the coordinator is gone")

    with capture_logs() as logs, PartWriter(tmp_path / "file", lambda *_: None, told) as writer:
        writer.write(1, lambda: part_of(1))
    assert [(step, "Not a directory" in why) for step, why in left_out] == [(1, True)]
    assert [(log["log_level"], "Not a directory" in log["reason"]) for log in logs] == [("warning", True)]


def test_the_last_part_is_never_left_out_and_waited_for(tmp_path: Path) -> None:
    """The one before may still be written: it is waited for, too."""
    going_on, told, stored = threading.Event(), threading.Event(), []

    def store(step: int, _: PartFile) -> None:
        told.set()
        assert going_on.wait(120)
        stored.append(step)

    with PartWriter(tmp_path, store) as writer:
        writer.write(1, lambda: part_of(1))
        assert told.wait(120)
        threading.Timer(0.05, going_on.set).start()
        with writer.finished():
            assert stored == [1]
            writer.write(2, lambda: part_of(2))
        assert stored == [1, 2]


def test_a_part_that_comes_after_the_end_is_left_out_and_nobody_waits_for_it(tmp_path: Path) -> None:
    """A worker's call to keep a step may be under way when its server's generation ends."""
    told: list[tuple[int, str]] = []
    with PartWriter(tmp_path, lambda *_: None, lambda step, why: told.append((step, why))) as writer:
        pass

    def keep() -> None:
        with writer.finished():
            writer.write(1, lambda: part_of(1))

    late = threading.Thread(target=keep, daemon=True)
    late.start()
    late.join(120)
    assert not late.is_alive()
    assert told == []
    assert list(tmp_path.iterdir()) == []


def test_a_process_whose_place_another_one_has_writes_nothing_over_its_files(tmp_path: Path) -> None:
    """It was told so with one part, and wrote the next one over that of a checkpoint which counted."""

    def store(step: int, _: PartFile) -> None:
        raise StaleError("worker 0 with incarnation 7 has not joined job 'taihu'")

    with capture_logs() as logs, PartWriter(tmp_path, store) as writer:
        for step in (1, 2):
            with writer.finished():
                writer.write(step, lambda step=step: part_of(step))  # type: ignore[misc]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-000001"]
    assert [log["step"] for log in logs] == [1, 2]
    assert "takes no part" in logs[1]["reason"]
