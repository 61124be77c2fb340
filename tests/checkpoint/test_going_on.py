"""A run that goes on by itself begins from the newest checkpoint that is whole, if there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster import layout_of
from support.made_checkpoints import make_checkpoint

from taihu.core.base.errors import CheckpointError, ConfigError
from taihu.core.checkpoint.keepers import (
    finished,
    from_beginning,
    going_on,
    newest_of,
    resumed_from,
    tell_finished,
    used_up,
)
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job import Job, load_job

LAYOUT = layout_of(5, 70)


def job_in(folder: Path, **checkpoint: object) -> Job:
    return load_job(None, {"checkpoint": {"dir": str(folder), "resume": "auto", **checkpoint}})


def make(folder: Path, job: Job, *steps: int, total: int = 100) -> CheckpointStore:
    """Checkpoints of that job."""
    store = CheckpointStore(folder)
    for step in steps:
        made = make_checkpoint(folder, LAYOUT, servers=1, step=step)
        store.commit(made.manifest.model_copy(update={"settings": dict(job.shared_settings), "total_steps": total}))
    return store


def damage(folder: Path) -> None:
    path = folder / "server-0.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"ruin")


def test_without_a_checkpoint_it_begins(tmp_path: Path) -> None:
    job = job_in(tmp_path / "none")
    assert newest_of(job) is None
    assert finished(job) is None
    assert from_beginning(job).checkpoint.resume is None
    assert resumed_from(going_on(job, 0)) is None


def test_it_goes_on_from_the_newest_that_is_whole(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    store = make(tmp_path, job, 20, 40, 60)
    damage(tmp_path / "step-000060")
    newest = newest_of(job)
    assert newest is not None
    assert newest.step == 40
    begun = resumed_from(going_on(job, newest.step))
    assert begun is not None
    assert begun.folder == store.folder_of(40)
    for step in (20, 40):
        damage(tmp_path / f"step-{step:06d}")
    with pytest.raises(CheckpointError, match="nothing to go on from"):
        newest_of(job)


def test_a_process_that_sees_another_folder_says_so(tmp_path: Path) -> None:
    """Step 40 was told by who hosts the run."""
    make(tmp_path / "theirs", job_in(tmp_path / "theirs"), 40)
    with pytest.raises(CheckpointError, match="own/step-000040"):
        resumed_from(going_on(job_in(tmp_path / "own"), 40))


def test_what_it_begins_from_holds_for_the_beginning_alone(tmp_path: Path) -> None:
    job = load_job(
        None, {"checkpoint": {"dir": str(tmp_path), "resume": "auto"}, "model": {"init_from": "model.safetensors"}}
    )
    make(tmp_path, job, 40)
    assert from_beginning(job).model.init_from == Path("model.safetensors")
    assert going_on(job, 40).model.init_from is None


def test_where_all_steps_have_been_made_nothing_is_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_in(tmp_path)
    make(tmp_path, job, 80, 100)
    assert tell_finished(job)
    told = f"nothing is left to do: all 100 steps have been made, see {tmp_path}/step-000100\n"
    assert capsys.readouterr().out == told
    longer = job.model_copy(update={"train": job.train.model_copy(update={"epochs": 99})})
    assert not tell_finished(longer)
    assert not tell_finished(job_in(tmp_path, resume=None))
    make(tmp_path, job, 120, total=200)
    assert not tell_finished(job)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("folder", [None, "none"])
def test_it_needs_a_folder(folder: str | None) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.resume auto is the newest in checkpoint.dir: name that"):
        load_job(None, {"checkpoint": {"dir": folder, "resume": "auto"}})


def test_a_loss_that_no_process_replaces_says_how_to_go_on(tmp_path: Path) -> None:
    assert used_up(job_in(tmp_path, restarts=2), "taihu train --resume runs/first") == (
        "checkpoint.restarts = 2 within an hour are used up; go on with: taihu train --resume runs/first"
    )
