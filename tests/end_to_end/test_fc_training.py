"""Runs whose fully connected layers are spread over the workers, of real processes, end where others end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

Taihu = Callable[..., subprocess.CompletedProcess[str]]
COMMON = ("--steps", "40", "--workers", "3", "--set", "optimizer.learning_rate=0.01")


def train(taihu: Taihu, folder: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    done = taihu("train", "--json", "result.json", "--save", "model.safetensors", *COMMON, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "result.json").read_text()), load_file(folder / "model.safetensors")


def test_sharded_runs_end_where_a_data_parallel_one_ends(taihu: Taihu, tmp_path: Path) -> None:
    data, expected = train(taihu, tmp_path, "--servers", "2")
    assert data["fc"] is None
    for way in (("--servers", "2"), ("--exchange", "ring", "--set", "exchange.fc_scheme=slices")):
        results, parameters = train(taihu, tmp_path, "--fc", "shard", *way)
        assert [layer["choice"] for layer in results["fc"]["layers"]] == ["shard", "shard"]
        assert results["fc"]["bytes_sent_per_step"] > 0
        assert results["bytes_sent_per_step"] < data["bytes_sent_per_step"]
        assert abs(results["test_accuracy"] - data["test_accuracy"]) < 0.005
        assert parameters.keys() == expected.keys()
        for name, values in expected.items():
            distance = np.linalg.norm(parameters[name] - values) / np.linalg.norm(values)
            assert distance < 1e-5, (way, name, distance)


def test_a_rerun_gives_the_same_bits(taihu: Taihu, tmp_path: Path) -> None:
    way = ("--fc", "shard", "--exchange", "ring", "--set", "exchange.fc_scheme=turns")
    first, _ = train(taihu, tmp_path, *way)
    second, _ = train(taihu, tmp_path, *way)
    assert first["parameters_sha256"] == second["parameters_sha256"]


@pytest.mark.parametrize("compression", ["none", "dlgs"])
def test_what_is_sharded_is_chosen_by_measuring(taihu: Taihu, tmp_path: Path, compression: str) -> None:
    """Whatever the choice is on this machine, all workers make the same one, and the run gets through."""
    results, _ = train(taihu, tmp_path, "--fc", "auto", "--exchange", "ring", "--compression", compression)
    fc = results["fc"]
    if fc is not None:
        for layer in fc["layers"]:
            assert layer["data_seconds"] > 0
            assert layer["shard_seconds"] > 0


def test_an_update_after_every_pass_trains_too(taihu: Taihu, tmp_path: Path) -> None:
    turns = ("--set", "exchange.fc_scheme=turns", "--set", "exchange.fc_update=pass")
    results, _ = train(taihu, tmp_path, "--fc", "shard", "--exchange", "ring", *turns)
    assert results["fc"]["update"] == "pass"
    assert results["test_accuracy"] > 0.5
