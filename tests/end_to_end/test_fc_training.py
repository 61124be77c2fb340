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
from support.daemons import daemons, free_port, ring_address, wait_for

Taihu = Callable[..., subprocess.CompletedProcess[str]]
SHARDED = ("--exchange", "ring", "--workers", "3", "--set", "exchange.fc=shard", "--bind", "127.0.0.1:0")
COMMON = ("--steps", "40", "--workers", "3", "--set", "optimizer.learning_rate=0.003")


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


@pytest.mark.parametrize(
    ("way", "stage"), [(("--servers", "2"), 2), (("--exchange", "ring"), 3)], ids=["servers", "ring"]
)
def test_no_stage_of_zero_changes_a_bit(taihu: Taihu, tmp_path: Path, way: tuple[str, ...], stage: int) -> None:
    """The convolutions' groups come and go, and are computed again; worker 0 tests and saves what no one holds."""
    short = ("--steps", "8", "--fc", "shard", *way)
    expected, parameters = train(taihu, tmp_path, *short)
    results, seen = train(taihu, tmp_path, *short, "--zero", str(stage), "--set", "train.recompute=memory")
    assert results["parameters_sha256"] == expected["parameters_sha256"]
    assert results["test_accuracy"] == expected["test_accuracy"]
    assert all((seen[name] == values).all() for name, values in parameters.items())


def test_sharded_layers_go_with_16_bit_values(taihu: Taihu, tmp_path: Path) -> None:
    half = ("--steps", "8", "--servers", "2", "--fc", "shard", "--zero", "3", "--precision", "bf16")
    results, _ = train(taihu, tmp_path, *half)
    whole, _ = train(taihu, tmp_path, "--steps", "8", "--servers", "2")
    assert results["final_loss"] == pytest.approx(whole["final_loss"], rel=0.05)
    assert results["parameters_sha256"] != whole["parameters_sha256"]


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


def test_a_missing_peer_is_named_on_every_rank(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with daemons(tmp_path) as start:
        # Worker 1 is up, and tries, before the time of worker 0 begins to run.
        second = start("worker", *SHARDED, "--rank", "1", "--coordinator", address, "--metrics-port", "0")
        wait_for(lambda: "metrics" in (tmp_path / "0.log").read_text(), "worker 1 did not start")
        impatient = ("--bind", address, "--set", "cluster.connect_timeout_s=5")
        first = start("worker", *SHARDED, "--rank", "0", *impatient)
        for log, worker in (("0.log", second), ("1.log", first)):
            assert worker.wait(timeout=60) != 0
            last = (tmp_path / log).read_text().splitlines()[-1]
            assert last.startswith("error: ")
            assert "worker 2 did not join" in last


def test_what_cannot_be_split_over_so_many_workers_is_one_error_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "narrow.py").write_text(
        "from worker.engine import Conv2d, Flatten, Linear, Sequential\n"
        "def build(shape, classes):\n"
        "    return Sequential([Conv2d(2, 3), Flatten(), Linear(2)])\n"
    )
    job = [*SHARDED, "--set", "model.name=narrow.py:build", "--set", "data.name=synthetic:1x8x8:classes=2"]
    with daemons(tmp_path) as start:
        first = start("worker", *job, "--rank", "0")
        address = ring_address(first)
        others = [start("worker", *job, "--rank", str(rank), "--coordinator", address) for rank in (1, 2)]
        for rank, worker in enumerate((first, *others)):
            worker.wait(timeout=60)
            last = (tmp_path / f"{rank}.log").read_text().strip().splitlines()[-1]
            assert "that can be split over 3 workers; set exchange.fc = 'data'" in last, last
