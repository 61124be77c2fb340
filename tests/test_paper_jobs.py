"""Job files with the papers' settings: their commands are commands, and they train on small files of that form."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from support.command_lines import parse
from support.commands import run_command

from taihu.core.job import load_job

JOBS = sorted((Path(__file__).parents[1] / "examples" / "papers").glob("*.toml"))
NAMES = [path.stem for path in JOBS]


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Six files of CIFAR-10's binary form, of 16 images each."""
    rng = np.random.default_rng(5)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records = rng.integers(0, 256, (16, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (tmp_path / name).write_bytes(records.tobytes())
    return tmp_path


@pytest.mark.parametrize("path", JOBS, ids=NAMES)
def test_the_commands_of_a_job_file_are_commands(path: Path) -> None:
    lines = re.findall(r"^#   (taihu .*)$", path.read_text(), re.MULTILINE)
    assert len(lines) >= 2
    for line in lines:
        words = shlex.split(line)
        assert words[2] == f"examples/papers/{path.name}"
        parse(words[1:])


def test_they_have_the_papers_settings() -> None:
    small, large, caffe = (load_job(path) for path in (JOBS[1], JOBS[2], JOBS[0]))
    assert (small.train.epochs, small.train.batch, small.optimizer.milestone_epochs) == (140, 32, (80, 120))
    assert (large.train.epochs, large.train.batch, large.optimizer.milestone_epochs) == (80, 64, (30, 60))
    for job in (small, large):
        assert (job.servers, job.world.workers, job.compression.threshold_slack) == (1, 3, "none")
        assert job.momentum_on_workers
    assert (caffe.train.steps, caffe.train.batch * caffe.world.workers) == (40_000, 100)


@pytest.mark.parametrize("name", ["caffe_cifar10_quick", "dlgs_cifar10"])
def test_they_train_on_files_of_cifar10s_form(cifar: Path, name: str) -> None:
    job = next(path for path in JOBS if path.stem == name)
    flags = ("--batch", "4", "--set", f"data.path={cifar}", "--run-dir", "none", "--json", "result.json")
    length = ("--set", "train.epochs=1") if name.startswith("dlgs") else ("--steps", "3")
    done = run_command("taihu", "train", str(job), *flags, *length, folder=cifar)
    assert done.returncode == 0, done.stderr
    assert json.loads((cifar / "result.json").read_text())["steps"] >= 3
