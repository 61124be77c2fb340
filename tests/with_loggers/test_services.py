"""Runs in MLflow's file store, W&B's offline files and trackio's database, read back by client, checksums and SQL."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.commands import PATIENCE_S
from wandb.proto.wandb_internal_pb2 import Record

from taihu import __version__
from taihu.core.job.environment import without_settings
from taihu.worker.reporting.loggers.wandb_file import steps_in

STEPS, KILLED, MORE = 300, 200, 320


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its middle, in `runs/killed`, and `runs/longer`, which goes on from its end."""
    folder = tmp_path_factory.mktemp("logged")
    fault = f'chaos.faults=["kill worker 0 at push after step {KILLED}"]'
    train(folder, "killed", "--steps", str(STEPS), "--set", "run.loggers=mlflow,wandb,trackio", "--set", fault)
    train(folder, "longer", "--steps", str(MORE), "--resume", "runs/killed", "--set", "chaos.faults=[]")
    return folder


def train(folder: Path, name: str, *flags: str) -> None:
    common = ("--workers", "2", "--servers", "1", "--model", "mlp", "--batch", "16", "--run-dir", f"runs/{name}")
    services = {
        "MLFLOW_TRACKING_URI": f"file://{folder}/store",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": f"{folder}/trackio",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "taihu", "train", *common, *flags],
        env={**without_settings(os.environ), **services},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stdout


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of both runs: the second one's table begins where the first one's ends."""
    told: list[dict[str, str]] = []
    for name in ("killed", "longer"):
        with (folder / "runs" / name / "steps.csv").open(newline="") as file:
            told += csv.DictReader(file)
    return told


def test_mlflow_has_one_run_with_each_step_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient  # noqa: PLC0415 - it reads the environment

    client = MlflowClient(f"file://{folder}/store")
    experiment = client.get_experiment_by_name("taihu")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "killed")
    assert run.data.params["train.batch"] == "16"
    assert run.data.params["model.name"] == "mlp"
    assert run.data.tags["taihu.version"] == __version__
    table = rows(folder)
    for name, column in {
        "loss/worker_0": "worker_0_loss",
        "learning_rate": "learning_rate",
        "seconds/step": "step_seconds",
        "exchange/sent_bytes": "sent_bytes",
    }.items():
        history = sorted(client.get_metric_history(run.info.run_id, name), key=lambda each: int(each.step))
        assert [each.step for each in history] == list(range(1, MORE + 1))
        expected = [pytest.approx(float(row[column]), abs=1e-6) for row in table]
        assert [each.value for each in history] == expected
    tests = client.get_metric_history(run.info.run_id, "test/accuracy")
    assert len({each.step for each in tests}) == len(tests) > 0


def in_trackio(folder: Path) -> list[tuple[str, int, dict[str, float]]]:
    """Run, step and values of all rows, as they were written."""
    with closing(sqlite3.connect(folder / "trackio" / "taihu.db")) as database:
        told = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    return [(name, step, json.loads(values)) for name, step, values in told]


def test_trackio_has_one_run_with_each_step_once(folder: Path) -> None:
    told = in_trackio(folder)
    assert {name for name, _, _ in told} == {"killed"}
    steps = [(step, values) for _, step, values in told if "seconds/step" in values]
    assert [step for step, _ in steps] == list(range(1, MORE + 1))
    expected = [pytest.approx(float(row["worker_0_loss"])) for row in rows(folder)]
    assert [values["loss/worker_0"] for _, values in steps] == expected
    tests = [step for _, step, values in told if "test/accuracy" in values]
    assert len(set(tests)) == len(tests) > 0
    with closing(sqlite3.connect(folder / "trackio" / "taihu.db")) as database:
        [(config,)] = database.execute("SELECT config FROM configs").fetchall()
    assert json.loads(config)["train.batch"] == 16


def histories(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The steps in a file, by the format of LevelDB's logs: blocks of 32 KiB, of records with checksums."""
    data, begun = path.read_bytes(), b""
    assert data.startswith(b":W&B")
    for block in range(0, len(data), 32_768):
        at, end = (7 if block == 0 else block), min(block + 32_768, len(data))
        while at + 7 <= end:
            checksum, length, kind = struct.unpack_from("<IHB", data, at)
            if kind == 0:
                break
            content = data[at + 7 : at + 7 + length]
            if len(content) < length:
                return  # cut off by a kill
            assert zlib.crc32(content, zlib.crc32(bytes([kind]))) == checksum
            begun = content if kind in {1, 2} else begun + content
            if kind in {1, 4}:
                record: Any = Record.FromString(begun)
                if record.HasField("history"):
                    items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
                    yield record.history.step.num, {key: float(value) for key, value in items.items()}
            at += 7 + length


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs/*/wandb/offline-run-*/run-*.wandb"))


def test_wandb_has_one_run_with_each_step_once(folder: Path) -> None:
    lives = files(folder)
    assert len(lives) == 3
    assert len({path.name for path in lives}) == 1  # one run's identifier
    told = [each for path in lives for each in histories(path)]
    steps = [(step, values) for step, values in told if "seconds/step" in values]
    assert [step for step, _ in steps] == list(range(1, MORE + 1))
    expected = [pytest.approx(float(row["worker_0_loss"])) for row in rows(folder)]
    assert [values["loss/worker_0"] for _, values in steps] == expected
    assert any("test/accuracy" in values for _, values in told)


def test_a_file_that_was_cut_off_anywhere_has_the_steps_before(folder: Path, tmp_path: Path) -> None:
    content = max((path.read_bytes() for path in files(folder)), key=len)
    last = 0
    for size in range(0, len(content) + 1, 397):
        (tmp_path / "cut.wandb").write_bytes(content[:size])
        found = steps_in([tmp_path / "gone.wandb", tmp_path / "cut.wandb"])
        expected = [step for step, values in histories_of(content[:size], tmp_path) if "seconds/step" in values]
        assert found.get("step", 0) == max(expected, default=0) >= last
        last = found.get("step", 0)
    assert last > 0


def histories_of(content: bytes, folder: Path) -> list[tuple[int, dict[str, float]]]:
    if len(content) < 7:
        return []
    (folder / "read.wandb").write_bytes(content)
    return list(histories(folder / "read.wandb"))


LIFE = """
import json, os, signal, sys
from pathlib import Path
from taihu.core.job.loggers import LoggedRow, LoggedRun, make_logger
name, folder, handed, first, last, how = sys.argv[1:]
run = LoggedRun("run", Path(folder), Path(folder), {"train.batch": 7}, {"taihu.job": "mine"})
logger = make_logger(name, run)
print(json.dumps(logger.begin(json.loads(handed))), flush=True)
names = ("seconds/step", "seconds/wait", "loss/worker_0")
logger.log([LoggedRow("step", step, dict.fromkeys(names, step)) for step in range(int(first), int(last) + 1)])
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
logger.end(how)
"""


def life(folder: Path, name: str, handed: dict[str, int], steps: tuple[int, int], how: str) -> dict[str, int]:
    """A life of a logger alone, with these steps; returns the steps that it says it has when it begins."""
    services = {"MLFLOW_TRACKING_URI": f"file://{folder}/store", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIFE, name, str(folder), json.dumps(handed), *map(str, steps), how],
        env={**without_settings(os.environ), **services, "WANDB_MODE": "offline", "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == (-9 if how == "killed" else 0), done.stderr
    told: dict[str, int] = json.loads(done.stdout.splitlines()[0])
    assert name != "trackio" or done.stdout.count("\n") == 1
    return told


def test_wandb_says_what_it_has_lost_with_a_killed_process(tmp_path: Path) -> None:
    """Thousands of rows fill its buffer, so that some are written, and others are not."""
    assert life(tmp_path, "wandb", {}, (1, 3000), "killed") == {}
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    written = [step for step, _ in histories(file)]
    assert written == list(range(1, len(written) + 1))
    assert 0 < len(written) < 3000
    there = life(tmp_path, "wandb", {"step": 3000}, (len(written) + 1, 3010), "finished")
    assert there["step"] == len(written)
    told = [step for path in sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb")) for step, _ in histories(path)]
    assert told == list(range(1, 3011))


def test_mlflow_says_what_it_has_beyond_what_was_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two metrics of a step: the rest of it comes, and nothing comes twice."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient  # noqa: PLC0415 - it reads the environment

    assert life(tmp_path, "mlflow", {}, (1, 5), "killed") == {}
    client, run_id = MlflowClient(f"file://{tmp_path}/store"), (tmp_path / "id").read_text()
    client.log_metric(run_id, "seconds/step", 6.0, step=6)
    assert life(tmp_path, "mlflow", {"step": 3}, (4, 8), "stopped") == {"step": 5, "test": 0}
    for name in ("seconds/step", "seconds/wait", "loss/worker_0"):
        assert sorted(each.step for each in client.get_metric_history(run_id, name)) == list(range(1, 9))
    run = client.get_run(run_id)
    assert (run.info.status, run.data.params) == ("KILLED", {"train.batch": "7"})


def test_trackio_takes_no_row_twice_and_prints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were written, and not noted, before a kill are handed over again."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    assert life(tmp_path, "trackio", {}, (1, 5), "killed") == {}
    assert life(tmp_path, "trackio", {"step": 3}, (4, 8), "stopped") == {"step": 3}
    assert [step for _, step, _ in in_trackio(tmp_path)] == list(range(1, 9))
