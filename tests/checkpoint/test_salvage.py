"""Steps that all members held become a checkpoint, and nothing else does."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs
from support.held import LAYOUT, TOTAL, hold, job_in, memory_in, run_of, state_of

from taihu.core.checkpoint import salvage as salvaging
from taihu.core.checkpoint.held_steps import HeldSteps, read_held
from taihu.core.checkpoint.manifest import MANIFEST
from taihu.core.checkpoint.run_memory import discard_memory, holds_steps, memory_of, prepare_memory
from taihu.core.checkpoint.salvage import newest_held, salvage
from taihu.core.checkpoint.store import CheckpointStore


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return memory_in(tmp_path, monkeypatch)


def test_the_newest_step_that_all_hold_becomes_a_checkpoint(tmp_path: Path, memory: Path) -> None:
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    hold(job, 3, 4)
    hold(job, 5, members=("worker 1",))
    assert newest_held(job) == 4
    assert salvage(job) == 4
    store = CheckpointStore(tmp_path / "kept")
    found = store.going_on(job.shared_settings)
    assert found is not None
    assert (found.step, found.manifest.total_steps) == (4, TOTAL)
    values = np.empty(LAYOUT.elements, dtype=np.float32)
    found.read_shared("parameters", LAYOUT, np.array([[0, LAYOUT.elements]]), values)
    assert set(values) == {4.0}
    assert set(found.own_of("worker 1")["residual"]) == {4.0}
    assert salvage(job) is None  # it is there


def test_older_checkpoints_are_removed_as_behind_any_other(tmp_path: Path, memory: Path) -> None:
    job = job_in(tmp_path / "kept", checkpoint={"keep": 1})
    prepare_memory(job)
    for step in (2, 3):
        hold(job, step)
        assert salvage(job) == step
    assert CheckpointStore(tmp_path / "kept").steps() == [3]


def test_a_checkpoint_that_is_as_new_stays(tmp_path: Path, memory: Path) -> None:
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    hold(job, 4)
    salvage(job)
    before = (tmp_path / "kept" / "step-000004" / MANIFEST).stat().st_mtime_ns
    hold(job, 3, 4, generation=8)
    assert salvage(job) is None
    assert (tmp_path / "kept" / "step-000004" / MANIFEST).stat().st_mtime_ns == before


def test_the_last_step_is_left_to_its_members_and_the_one_before_goes_on(tmp_path: Path, memory: Path) -> None:
    """Whoever is lost in the farewell makes the last step again, also where its checkpoint is there."""
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    hold(job, TOTAL - 1, TOTAL)
    store = CheckpointStore(tmp_path / "kept")
    store.folder_of(TOTAL).mkdir(parents=True)
    store.commit(run_of(job).model_copy(update={"step": TOTAL}))
    assert salvage(job) == TOTAL - 1
    assert store.steps() == [TOTAL, TOTAL - 1]


@pytest.mark.parametrize("how", ["nobody", "one less", "another generation", "another job", "no token", "a file"])
def test_what_not_all_hold_becomes_no_checkpoint(how: str, tmp_path: Path, memory: Path) -> None:
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    folder = memory_of(job)
    assert folder is not None
    others = ("server 0", "server 1", "worker 0")
    if how == "one less":
        hold(job, 4, members=others)
    elif how == "another generation":
        hold(job, 4, members=others)
        hold(job, 4, members=("worker 1",), generation=8)
    elif how == "another job":
        hold(job.model_copy(update={"train": job.train.model_copy(update={"seed": 77})}), 4)
    elif how != "nobody":
        hold(job, 4)
    if how == "no token":
        (tmp_path / "kept" / "memory").write_text("../kept")
    if how == "a file":
        for path in folder.glob("*server-1*"):
            os.truncate(path, path.stat().st_size - 4)
    assert salvage(job) is None
    assert CheckpointStore(tmp_path / "kept").steps() == []


def test_what_changes_while_it_is_read_is_not_taken(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that lives, and has not heard yet, goes on: the step before is taken, if all of it is there."""
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    hold(job, 3, 4)
    folder = memory_of(job)
    assert folder is not None
    held = HeldSteps(folder, "worker 1", 7, run_of(job))
    read = read_held

    def overtaken(*arguments: Any) -> Any:
        held.begin(6, lambda: state_of("worker 1", 0))
        return read(*arguments)

    monkeypatch.setattr(salvaging, "read_held", overtaken)
    with capture_logs() as logs:
        assert salvage(job) == 3
    (told,) = [each for each in logs if each["event"] == "held steps are lost"]
    assert "worker 1 does not hold step 4 any more" in told["reason"]


def test_where_nothing_can_be_written_the_run_goes_on_from_what_there_is(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    hold(job, 4)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(salvaging, "write_part", full)
    assert salvage(job) is None


OTHERS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "fp16": {"train": {"precision": "fp16"}, "exchange": {"zero": 2}, "compression": {}},
    "no checkpoints": {"checkpoint": {"dir": "none"}},
    "none wanted": {"checkpoint": {"in_memory": False}},
    "no restarts": {"checkpoint": {"restarts": 0}},
    "a store": {"checkpoint": {"dir": "memory://bucket/kept"}},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_others_hold_nothing(kind: str, tmp_path: Path, memory: Path) -> None:
    job = job_in(tmp_path / "kept", **OTHERS[kind])
    assert not holds_steps(job)
    prepare_memory(job)
    assert memory_of(job) is None
    assert salvage(job) is None
    assert newest_held(job) == 0
    discard_memory(job)


def test_the_memory_of_a_run_is_one_and_goes_with_it(tmp_path: Path, memory: Path) -> None:
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    folder = memory_of(job)
    prepare_memory(job)
    assert memory_of(job) == folder
    hold(job, 4)
    discard_memory(job)
    assert list(memory.iterdir()) == []
    assert list((tmp_path / "kept").iterdir()) == []
    assert salvage(job) is None


def test_members_of_other_hosts_hold_nothing(tmp_path: Path, memory: Path) -> None:
    """They see the folder of checkpoints, and not the memory that it names."""
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    (folder,) = memory.iterdir()
    folder.rename(memory / "elsewhere")
    assert memory_of(job) is None
    assert salvage(job) is None
    prepare_memory(job)  # the coordinator is here now
    assert memory_of(job) == folder


def test_who_removes_the_folder_of_checkpoints_begins_anew(tmp_path: Path, memory: Path) -> None:
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    hold(job, 4)
    (tmp_path / "kept" / "memory").unlink()
    prepare_memory(job)
    assert salvage(job) is None


def test_what_killed_runs_have_left_goes_after_an_hour(tmp_path: Path, memory: Path) -> None:
    jobs = {name: job_in(tmp_path / name) for name in ("old", "new")}
    for job in jobs.values():
        prepare_memory(job)
        hold(job, 4)
    for name, age_s in (("old", 3700.0), ("new", 3500.0)):
        folder = memory_of(jobs[name])
        assert folder is not None
        os.utime(folder, (time.time() - age_s,) * 2)
    another = job_in(tmp_path / "another")
    prepare_memory(another)
    assert {memory_of(jobs["new"]), memory_of(another)} == set(memory.iterdir())
