"""Whole runs of real processes on free ports: they end where one process would end, and always the same way."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

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


def test_two_runs_of_a_job_end_with_the_same_bits_on_any_number_of_servers(taihu: Taihu, tmp_path: Path) -> None:
    # That they are the bits of one process, up to rounding, is in test_ring_training.py.
    runs = [train(taihu, tmp_path, "--steps", "30", "--servers", servers)[0] for servers in ("2", "2", "1", "3")]
    tcp = ("--set", "exchange.transport=tcp")
    runs.append(train(taihu, tmp_path, "--steps", "30", "--servers", "2", *tcp)[0])
    assert len({run["parameters_sha256"] for run in runs}) == 1


def test_the_plan_does_not_change_the_result(taihu: Taihu, tmp_path: Path) -> None:
    reference, _ = train(taihu, tmp_path, "--steps", "10")
    small = ("exchange.transport=tcp", "exchange.frame_bytes=8192", "exchange.window_frames=2")
    settings = [f"--set={setting}" for setting in small]
    for plan in ("per-layer", "single", "bucket:20kB"):
        results, _ = train(taihu, tmp_path, "--steps", "10", *settings, "--set", f"exchange.plan={plan}")
        assert results["parameters_sha256"] == reference["parameters_sha256"], plan


def test_a_user_trains_a_model_of_his_own(taihu: Taihu, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from worker.engine import Flatten, Linear, ReLU, Sequential\n"
        "def build(input_shape, classes):\n"
        "    return Sequential([Flatten(), Linear(24), ReLU(), Linear(classes)])\n"
    )
    results, parameters = train(taihu, tmp_path, "--model", "mine.py:build", "--epochs", "4")
    assert results["test_accuracy"] > 0.9
    assert sum(values.size for values in parameters.values()) == 64 * 24 + 24 + 24 * 10 + 10


def test_every_optimizer_trains_with_batch_norm_and_augmentation(taihu: Taihu, tmp_path: Path) -> None:
    common = ("--data", "synthetic:3x16x16", "--model", "resnet20", "--batch", "8", "--steps", "3")
    for optimizer in ("sgd", "adam", "adamw"):
        results, _ = train(
            taihu, tmp_path, *common, "--set", f"optimizer.name={optimizer}", "--set", "data.augment=flip"
        )
        assert np.isfinite(results["final_loss"])
