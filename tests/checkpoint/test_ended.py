"""The end of a run, kept beside its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster import make_job

from taihu.core.checkpoint.ended import ENDED, EndedRun, forget_end, keep_end, kept_end
from taihu.core.checkpoint.keepers import ended_run
from taihu.core.job import Job
from taihu.local.resuming import check_folder

END = EndedRun(generation=2**62, settings={"train.seed": "1"}, parameters_sha256="ab" * 32)


def job_in(folder: Path, **checkpoint: object) -> Job:
    return make_job(1, 1, checkpoint={"dir": folder, **checkpoint})


def test_an_end_is_there_until_it_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    assert kept_end(folder) is None
    forget_end(folder)
    keep_end(folder, END)
    assert kept_end(folder) == END
    assert [path.name for path in folder.iterdir()] == [ENDED]
    forget_end(folder)
    assert kept_end(folder) is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"generation": -1}', "\0" * 30, END.model_dump_json()[:-9]])
def test_what_is_damaged_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / ENDED).write_text(text)
    assert kept_end(tmp_path) is None


def test_it_is_that_of_a_run_with_the_same_settings_which_recovers(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    assert ended_run(job) is None
    keep_end(tmp_path, END)
    assert ended_run(job) is None
    own = END.model_copy(update={"settings": dict(job.shared_settings)})
    keep_end(tmp_path, own)
    assert ended_run(job) == own
    assert ended_run(job_in(tmp_path, restarts=0)) is None
    longer = job.model_copy(update={"train": job.train.model_copy(update={"steps": 99})})
    assert ended_run(longer) is None


def test_a_run_that_taihu_train_begins_has_none(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    keep_end(tmp_path, END.model_copy(update={"settings": dict(job.shared_settings)}))
    check_folder(job)
    assert ended_run(job) is None
