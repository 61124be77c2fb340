"""Whole runs of real processes on free ports: they learn, and end with the bits of a run in one process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.whole_run import run_here

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def train(taihu: Taihu, folder: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results and parameters of a run."""
    done = taihu("train", "--json", "result.json", "--save", "model.safetensors", *arguments)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "result.json").read_text())
    assert results["parameters_sha256"] in done.stdout
    return results, load_file(folder / "model.safetensors")


def test_three_workers_on_two_servers_learn_the_digits(taihu: Taihu, tmp_path: Path) -> None:
    results, _ = train(taihu, tmp_path)
    assert results["test_accuracy"] >= 0.97
    assert (results["servers"], results["workers"], results["exchange"]) == (2, 3, "server")
    evaluated = taihu("evaluate", "model.safetensors", "--json", "evaluated.json")
    assert evaluated.returncode == 0, evaluated.stderr
    again = json.loads((tmp_path / "evaluated.json").read_text())
    assert again["test_accuracy"] == results["test_accuracy"]
    assert again["parameters_sha256"] == results["parameters_sha256"]


# By processes, and in this one; what else must not change a bit is shown here, in tests/worker.
WAYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "servers": ((), ("exchange.transport=tcp", "exchange.plan=single")),
    "ring": (("--exchange", "ring"), ("exchange.kind=ring", "exchange.transport=tcp")),
    "fetched": (
        ("--zero", "3", "--precision", "fp16", "--set", "train.recompute=memory"),
        ("exchange.zero=2", "train.precision=fp16"),
    ),
    "compressed": (
        ("--exchange", "ring", "--compression", "dlgs", "--density", "0.05", "--plan", "bucket:20kB"),
        ("cluster.servers=1", "compression.method=dlgs", "compression.density=0.05", "exchange.plan=bucket:20kB"),
    ),
    "sharded": (
        ("--exchange", "ring", "--fc", "shard", "--zero", "3", "--set", "exchange.fc_scheme=turns"),
        ("exchange.kind=ring", "exchange.fc=shard", "exchange.fc_scheme=turns"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_processes_end_with_the_bits_of_a_run_in_one(taihu: Taihu, tmp_path: Path, way: str) -> None:
    flags, assignments = WAYS[way]
    results, parameters = train(taihu, tmp_path, "--steps", "12", "--batch", "8", *flags)
    expected = run_here("train.steps=12", "train.batch=8", *assignments, model=tmp_path / "expected.safetensors")
    for same in ("parameters_sha256", "test_accuracy", "skipped_steps", "exchange", "compression"):
        if (way, same) != ("compressed", "exchange"):
            assert results[same] == expected[same], same
    saved = load_file(tmp_path / "expected.safetensors")
    assert parameters.keys() == saved.keys()
    assert all(np.array_equal(parameters[name], values) for name, values in saved.items())


def test_a_user_trains_a_model_of_his_own(taihu: Taihu, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from taihu.worker.engine import Flatten, Linear, ReLU, Sequential\n"
        "def build(input_shape, classes):\n"
        "    return Sequential([Flatten(), Linear(24), ReLU(), Linear(classes)])\n"
    )
    results, parameters = train(taihu, tmp_path, "--model", "mine.py:build", "--epochs", "4")
    assert results["test_accuracy"] > 0.9
    assert sum(values.size for values in parameters.values()) == 64 * 24 + 24 + 24 * 10 + 10


def test_a_stage_that_does_not_go_with_the_rest_is_refused(taihu: Taihu) -> None:
    done = taihu("train", "--compression", "dlgs", "--set", "exchange.zero=3")
    assert done.returncode == 2
    assert "set exchange.zero = 1" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
