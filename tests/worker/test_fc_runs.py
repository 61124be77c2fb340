"""Whole runs whose fully connected layers are spread over the workers end where others end."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.whole_run import run_here
from support.worker import Values

# Runs that several tests compare are made once, in one process.
pytestmark = pytest.mark.xdist_group("runs with spread layers")

Ended = tuple[dict[str, Any], dict[str, Values]]

COMMON = ("train.steps=12", "train.batch=8", "optimizer.learning_rate=0.003")
SHARD = "exchange.fc=shard"
RING = "exchange.kind=ring"


@cache
def run(*assignments: str) -> Ended:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        return run_here(*COMMON, *assignments, model=path), load_file(path)


@pytest.mark.parametrize("way", [(), (RING, "exchange.fc_scheme=slices")], ids=["servers", "ring"])
def test_sharded_runs_end_where_a_data_parallel_one_ends(way: tuple[str, ...]) -> None:
    # With few samples a rounding difference that turns one ReLU grows past the bound.
    batch = "train.batch=32"
    data, expected = run(batch)
    assert data["fc"] is None
    results, parameters = run(batch, SHARD, *way)
    assert [layer["choice"] for layer in results["fc"]["layers"]] == ["shard", "shard"]
    assert results["fc"]["bytes_sent_per_step"] > 0
    assert results["bytes_sent_per_step"] < data["bytes_sent_per_step"]
    assert abs(results["test_accuracy"] - data["test_accuracy"]) < 0.005
    assert parameters.keys() == expected.keys()
    for name, values in expected.items():
        distance = np.linalg.norm(parameters[name] - values) / np.linalg.norm(values)
        assert distance < 1e-5, (name, distance)


@pytest.mark.parametrize(("way", "stage"), [((), 2), ((RING,), 3)], ids=["servers", "ring"])
def test_no_stage_of_zero_changes_a_bit(way: tuple[str, ...], stage: int) -> None:
    """The convolutions' groups come and go, and are computed again; worker 0 tests and saves what no one holds."""
    expected, parameters = run(SHARD, *way)
    results, seen = run(SHARD, *way, f"exchange.zero={stage}", "train.recompute=memory")
    assert results["parameters_sha256"] == expected["parameters_sha256"]
    assert results["test_accuracy"] == expected["test_accuracy"]
    assert all((seen[name] == values).all() for name, values in parameters.items())


def test_sharded_layers_go_with_16_bit_values() -> None:
    results, _ = run(SHARD, "exchange.zero=3", "train.precision=bf16")
    whole, _ = run()
    assert results["final_loss"] == pytest.approx(whole["final_loss"], rel=0.05)
    assert results["parameters_sha256"] != whole["parameters_sha256"]


@pytest.mark.parametrize("compression", ["none", "dlgs"])
def test_what_is_sharded_is_chosen_by_measuring(compression: str) -> None:
    """Whatever the choice is on this machine, all workers make the same one, and the run gets through."""
    results = run_here(*COMMON, "exchange.fc=auto", RING, f"compression.method={compression}")
    fc = results["fc"]
    if fc is not None:
        for layer in fc["layers"]:
            assert layer["data_seconds"] > 0
            assert layer["shard_seconds"] > 0


def test_an_update_after_every_pass_trains_too() -> None:
    turns = ("train.steps=40", "train.batch=32", "exchange.fc_scheme=turns", "exchange.fc_update=pass")
    results = run_here(*COMMON, *turns, SHARD, RING)
    assert results["fc"]["update"] == "pass"
    assert results["test_accuracy"] > 0.5
