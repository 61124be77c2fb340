"""Runs with loggers of an installed package, and with TensorBoard's files, as users start them."""

from __future__ import annotations

import csv
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import PATIENCE_S
from support.own_loggers import installed
from tensorboardX.proto.event_pb2 import Event, SessionLog

from taihu.core.job.environment import without_settings
from taihu.core.job.loggers import Kind, LoggedRow, LoggedRun
from taihu.worker.reporting.loggers.to_tensorboard import EventFile

STEPS, KILLED = 60, 30


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("installed"))


def train(package: Path, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    common = ("--workers", "2", "--servers", "1", "--model", "mlp", "--steps", str(STEPS), "--batch", "16")
    return subprocess.run(
        [sys.executable, "-P", "-m", "taihu", "train", *common, *flags],
        env={**without_settings(os.environ), "PYTHONPATH": str(package)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def lines(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def shown_by_tensorboard(folder: Path) -> dict[int, dict[str, float]]:
    """The values of each step that TensorBoard keeps: the step that a file begins with drops later ones."""
    shown: list[tuple[int, dict[str, float]]] = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                shown = [each for each in shown if each[0] < event.step]
            elif event.summary.value:
                shown.append((event.step, {value.tag: value.simple_value for value in event.summary.value}))
    steps = [step for step, values in shown if "seconds/step" in values]
    assert steps == sorted(set(steps))
    merged: dict[int, dict[str, float]] = {}
    for step, values in shown:
        merged.setdefault(step, {}).update(values)
    return merged


def events(path: Path) -> Iterator[Event]:
    content = path.read_bytes()
    while len(content) >= 12:
        (length,) = struct.unpack_from("<Q", content)
        if 16 + length > len(content):
            return  # what a kill has left of an event
        yield Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]


def test_loggers_have_each_step_of_a_killed_run_once_and_broken_ones_are_told(package: Path, tmp_path: Path) -> None:
    done = train(
        package,
        tmp_path,
        *("--run-dir", "run", "--set", "run.loggers=lines,tensorboard,failing,number"),
        *("--set", f'chaos.faults=["kill worker 0 at push after step {KILLED}"]'),
    )
    assert done.returncode == 0, done.stderr
    assert "run.loggers: failing: the service has gone; the run goes on without it" in done.stdout
    assert "run.loggers: number: entry point number of taihu.loggers: expected what makes a logger" in done.stdout
    with (tmp_path / "run" / "steps.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == STEPS

    told = lines(tmp_path / "run" / "loggers" / "lines" / "lines")
    first, *_, last = told
    assert (first[:2], first[4], last) == (["begin", "run"], {}, ["end", "finished"])
    assert (first[2]["train.batch"], first[3]["taihu.job"]) == (16, "taihu")
    assert sum(line[0] == "begin" for line in told) == 2
    steps = [line for line in told if line[0] == "step"]
    assert [step for _, step, _ in steps] == list(range(1, STEPS + 1))
    for (_, _, values), row in zip(steps, table, strict=True):
        assert values["loss/worker_0"] == pytest.approx(float(row["worker_0_loss"]))
        assert values["seconds/step"] == pytest.approx(float(row["step_seconds"]), abs=1e-6)
        assert values["exchange/sent_bytes"] == int(row["sent_bytes"])
    tests = [line for line in told if line[0] == "test"]
    assert "test/accuracy" in tests[-1][2]

    shown = shown_by_tensorboard(tmp_path / "run")
    assert sorted(shown) == list(range(1, STEPS + 1))
    assert [shown[int(row["step"])]["loss/worker_0"] for row in table] == [
        pytest.approx(float(row["worker_0_loss"])) for row in table
    ]
    assert shown[tests[-1][1]]["test/accuracy"] == pytest.approx(tests[-1][2]["test/accuracy"])


def test_tensorboard_drops_what_a_killed_process_has_left_behind_the_step_that_was_noted(tmp_path: Path) -> None:
    run = LoggedRun("run", tmp_path, tmp_path, {}, {})
    lives: list[tuple[dict[Kind, int], range]] = [({}, range(1, 6)), ({"step": 3}, range(4, 8))]
    begun = []
    for handed, steps in lives:
        life = EventFile(run)
        begun.append(life)
        assert life.begin(handed) == handed
        life.log([LoggedRow("step", step, {"seconds/step": step + len(handed)}) for step in steps])
    shown = shown_by_tensorboard(tmp_path)
    for life in begun:
        life.end("finished")
    assert [values["seconds/step"] for values in shown.values()] == [1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "run.loggers=mlfow",
            "error: run.loggers: no logger is called 'mlfow'; known here: tensorboard, mlflow, trackio, wandb, "
            "failing, hanging, lines, number\n",
        ),
        ("run.events=tensorboard", "run.loggers now, which takes a list, each a name, for example 'mlflow'\n"),
        ("run.loggers=lines,lines", "expected each logger once, got lines, lines\n"),
    ],
)
def test_what_names_no_logger_is_refused_in_one_line(setting: str, words: str, package: Path, tmp_path: Path) -> None:
    done = train(package, tmp_path, "--set", setting)
    assert done.returncode == 2
    assert done.stderr.endswith(words)
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
