"""The place of a run's files, by the words of `[run]`; bad ones are refused before anything starts."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, load_job
from taihu.core.job.run_folder import RunFiles, add_events, note_failure, prepare_run, run_files, run_folder, run_name
from taihu.core.settings import CheckpointSettings, RunSettings

DEFAULT = Path("runs/{name}-{time}")
NOON = datetime(2026, 7, 28, 12, 0, 5)
FILES = st.none() | st.sampled_from(["none", "m.bin", "deep/m.bin", "/elsewhere/m.bin"]).map(Path)


@pytest.mark.parametrize(
    ("model", "data", "name"),
    [
        ("small_cnn", "digits", "small_cnn-on-digits"),
        ("resnet20", "synthetic:3x32x32:classes=4", "resnet20-on-synthetic-3x32x32-classes-4"),
        ("deep/mine.py:build", "digits", "mine-on-digits"),
    ],
)
def test_a_job_without_a_name_is_called_by_its_model_and_data(model: str, data: str, name: str) -> None:
    assert run_name(Job.model_validate({"model": {"name": model}, "data": {"name": data}})) == name


def test_a_folder_is_called_by_name_and_time(tmp_path: Path) -> None:
    job = Job(name="fashion")
    assert run_folder(job, NOON) is None
    assert run_folder(job, NOON, DEFAULT) == Path("runs/fashion-20260728-120005")
    given = Job(name="fashion", run=RunSettings(dir=tmp_path / "{time}" / "{name}"))
    assert run_folder(given, NOON, DEFAULT) == tmp_path / "20260728-120005" / "fashion"
    assert run_folder(Job(run=RunSettings(dir=Path("none"))), NOON, DEFAULT) is None


@given(save=FILES, results=FILES, folder=st.none() | st.just(Path("/a/run")))
def test_files_lie_in_the_folder_unless_they_say_otherwise(
    save: Path | None, results: Path | None, folder: Path | None
) -> None:
    files = run_files(RunSettings(save=save, results=results), folder)
    base = folder or Path()
    none = Path("none")
    usual = {"model": base / "model.safetensors", "results": base / "results.json"} if folder else {}
    assert files.model == (None if save == none else base / save if save else usual.get("model"))
    further = [] if results in (None, none) else [base / str(results)]
    own = [] if results == none or not folder else [usual["results"]]
    assert list(files.results) == own + further


def test_a_prepared_folder_begins_the_same_run_again(tmp_path: Path) -> None:
    job_file = tmp_path / "job.toml"
    job_file.write_text("# mine\ntrain.steps = 7\n")
    job = load_job(job_file, {"train": {"batch": 9}, "run": {"dir": str(tmp_path / "run"), "save": "a/m.bin"}})
    files = prepare_run(job, job_file)
    assert files.folder == tmp_path / "run"
    assert files.model == tmp_path / "run" / "a" / "m.bin"
    assert files.model.parent.is_dir()
    assert (files.folder / "job.toml").read_bytes() == job_file.read_bytes()
    again = load_job(files.folder / "settings.toml")
    assert again.run.dir is None
    assert again.model_copy(update={"run": job.run}) == job


def test_without_a_file_the_job_is_what_was_given(tmp_path: Path) -> None:
    job = load_job(None, {"train": {"batch": 9}, "run": {"dir": str(tmp_path / "run")}})
    folder = prepare_run(job, None).folder
    assert folder is not None
    assert (folder / "job.toml").read_text().split("[run]")[0].strip() == "[train]\nbatch = 9"
    assert load_job(folder / "job.toml") == job


def test_a_job_file_that_is_a_pipe_is_not_read_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    job = load_job(None, {"train": {"batch": 9}, "run": {"dir": str(tmp_path / "run")}})
    folder = prepare_run(job, tmp_path / "pipe").folder
    assert folder is not None
    assert load_job(folder / "job.toml") == job


def test_runs_that_start_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taihu.core.job.run_folder.local_now", lambda: datetime(2026, 7, 28, 12))
    folders = [prepare_run(Job(), None, default=tmp_path / DEFAULT).folder for _ in range(3)]
    name = "small_cnn-on-digits-20260728-120000"
    assert folders == [tmp_path / "runs" / f"{name}{number}" for number in ("", "-2", "-3")]


def test_the_folder_of_another_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("another's")
    job = Job(run=RunSettings(dir=tmp_path))
    with pytest.raises(ConfigError, match=re.escape(f"run folder {tmp_path}: it is not empty")) as caught:
        prepare_run(job, None)
    assert "give a new --run-dir" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["steps.csv"]
    assert prepare_run(job, None, made=True).folder == tmp_path


def test_checkpoints_may_be_there_before_the_run_has_its_folder(tmp_path: Path) -> None:
    """Server 0 names the memory of the run there, and may be faster than worker 0: compose's containers ended."""
    kept = tmp_path / "run" / "below" / "checkpoints"
    kept.mkdir(parents=True)
    (kept / "memory").write_text("1234")
    job = Job(run=RunSettings(dir=tmp_path / "run"), checkpoint=CheckpointSettings(dir=kept))
    assert prepare_run(job, None, goes_on=True).folder == tmp_path / "run"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "below").mkdir()
    with pytest.raises(ConfigError, match="it is not empty"):
        prepare_run(job.model_copy(update={"run": RunSettings(dir=tmp_path / "other")}), None, goes_on=True)


def test_a_process_in_the_place_of_another_one_goes_on_in_its_folder(tmp_path: Path) -> None:
    job = Job(run=RunSettings(dir=tmp_path))
    prepare_run(job, None, goes_on=True)
    (tmp_path / "steps.csv").write_text("its own")
    assert prepare_run(job, None, goes_on=True).folder == tmp_path
    assert (tmp_path / "steps.csv").read_text() == "its own"
    with pytest.raises(ConfigError, match="it is not empty"):
        prepare_run(job, None)
    other = job.model_copy(update={"train": job.train.model_copy(update={"batch": 7})})
    with pytest.raises(ConfigError, match="it is not empty"):
        prepare_run(other, None, goes_on=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dir": "file/run"}, "cannot be made: file: File exists; give another --run-dir, or none"),
        ({"dir": "run", "save": "/nowhere/m.safetensors"}, "cannot write /nowhere/m.safetensors"),
        ({"results": "nowhere/r.json"}, "cannot write nowhere/r.json"),
        (
            {"loggers": "tensorboard,mine"},
            "run.loggers tensorboard, mine: without a run folder",
        ),
    ],
)
def test_what_cannot_be_written_is_said_before_training(
    settings: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=re.escape(words)):
        prepare_run(Job.model_validate({"run": settings}), None)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensorboard", r"tensorboardX is not installed; pip install 'taihu\[tensorboard\]'"),
        ("mlflow", r"mlflow is not installed; pip install 'taihu\[mlflow\]', or leave 'mlflow' out of run.loggers"),
        ("trackio", r"trackio is not installed; pip install 'taihu\[trackio\]'"),
        ("wandb", r"wandb is not installed; pip install 'taihu\[wandb\]'"),
        ("wandbb", "no logger is called 'wandbb'; known here: tensorboard, mlflow, trackio, wandb"),
    ],
)
def test_a_logger_that_is_not_there_is_said_before_training(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taihu.core.job.loggers.find_spec", lambda name: None)
    job = Job(run=RunSettings(dir=tmp_path / "run", loggers=(name,)))
    with pytest.raises(ConfigError, match=words) as caught:
        prepare_run(job, None)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_no_folder_means_no_files() -> None:
    assert prepare_run(Job(), None) == RunFiles()


def test_braces_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected no braces but \{name\} and \{time\}, got 'runs/\{tmie\}'"):
        load_job(None, {"run": {"dir": "runs/{tmie}"}})


def test_a_failure_is_an_event_unless_the_worker_has_told_it(tmp_path: Path) -> None:
    def events() -> list[dict[str, object]]:
        return [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]

    add_events(tmp_path, [{"event": "training", "step": 0}])
    for _ in range(2):
        note_failure(tmp_path, "worker 1 was killed", NOON)
    failed = {"time": "2026-07-28T12:00:05.000", "event": "failed", "reason": "worker 1 was killed"}
    assert events() == [{"event": "training", "step": 0}, failed]
    note_failure(tmp_path / "gone", "nowhere to write", NOON)
