"""The examples of docs/data.md: their code runs, and their commands find data that can be trained on."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support.readme import commands, files, typed

from taihu.core.job import load_job, parse_assignments
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import build_model
from taihu.worker.preflight import check_inputs

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def trained(command: str) -> None:
    """The checks of `taihu train` before its first step."""
    program, verb, *arguments = shlex.split(command)
    assert (program, verb) == ("taihu", "train")
    flags: dict[str, dict[str, object]] = {"data": {}, "model": {}}
    assignments = []
    for option, value in zip(arguments[::2], arguments[1::2], strict=True):
        if option == "--set":
            assignments.append(value)
        else:
            assert option in {"--data", "--model", "--steps"}
            if option != "--steps":
                flags[option[2:]]["name"] = value
    job = load_job(None, parse_assignments(assignments), flags)
    check_inputs(job)
    dataset = load_dataset(job.data)
    if len(dataset.input_shape) == 1 or min(dataset.input_shape[:2]) > 1:
        build_model(job.model.name, dataset.input_shape, dataset.outputs)
    Batches(dataset, batch=job.train.batch, workers=3, rank=2, seed=1, augment=job.data.augment).batch(20)


def test_every_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    for name, content in files(text, {}).items():
        Path(name).write_text(content, encoding="utf-8")
    exec(typed(text), {})  # noqa: S102 - the page's own code
    lines = [command.text for command in commands(text)]
    for line in lines:
        trained(line)
    assert len(lines) == 8
