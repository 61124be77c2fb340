"""Runs without servers, of real processes: they end where servers would, and no one outlives a dead peer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.daemons import Process, daemons, free_port, ring_address, wait_for

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def train(taihu: Taihu, folder: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    done = taihu("train", "--json", "result.json", "--save", "model.safetensors", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "result.json").read_text()), load_file(folder / "model.safetensors")


def test_a_ring_ends_where_servers_and_one_worker_end(taihu: Taihu, tmp_path: Path) -> None:
    # With a larger rate a rounding difference that turns one ReLU or maximum would grow past the bound.
    common = ("--steps", "100", "--set", "optimizer.learning_rate=0.003")
    alone, expected = train(taihu, tmp_path, *common, "--servers", "1", "--workers", "1", "--batch", "96")
    for way in (("--exchange", "server", "--servers", "2"), ("--exchange", "ring")):
        results, parameters = train(taihu, tmp_path, *common, *way, "--workers", "3", "--batch", "32")
        assert results["exchange"] == way[1]
        assert abs(results["test_accuracy"] - alone["test_accuracy"]) < 0.005
        assert parameters.keys() == expected.keys()
        for name, values in expected.items():
            distance = np.linalg.norm(parameters[name] - values) / np.linalg.norm(values)
            assert distance < 1e-5, (way, name, distance)


def test_rings_end_with_the_same_bits_whatever_the_plan_and_the_path(taihu: Taihu, tmp_path: Path) -> None:
    plans = ("auto", "per-layer", "single", "bucket:20kB")
    common = ("--exchange", "ring", "--workers", "3", "--steps", "30")
    runs = [train(taihu, tmp_path, *common, "--plan", plan)[0] for plan in plans]
    runs.append(train(taihu, tmp_path, *common, "--set", "exchange.transport=tcp")[0])
    assert len({run["parameters_sha256"] for run in runs}) == 1
    assert runs[0]["servers"] == 0
    # Every rank sends 2 (P - 1) / P of the gradient in every step.
    elements = sum(layer["elements"] for layer in runs[0]["profile"]["layers"])
    assert runs[0]["bytes_sent_per_step"] == runs[0]["bytes_received_per_step"] == 2 * 2 * elements * 4


def test_a_compressed_ring_ends_with_the_bits_of_a_run_through_one_server(taihu: Taihu, tmp_path: Path) -> None:
    common = (
        "--compression",
        "dlgs",
        "--density",
        "0.05",
        "--plan",
        "bucket:20kB",
        "--workers",
        "3",
        "--steps",
        "30",
    )
    ring, _ = train(taihu, tmp_path, *common, "--exchange", "ring")
    server, _ = train(taihu, tmp_path, *common, "--servers", "1")
    assert ring["parameters_sha256"] == server["parameters_sha256"]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_survivors_of_a_killed_worker_end_and_name_it(tmp_path: Path, victim: int) -> None:
    endless = (
        "--exchange",
        "ring",
        "--workers",
        "4",
        "--set",
        "train.steps=1000000",
        "--set",
        "train.evaluate=false",
    )
    with daemons(tmp_path) as start:
        first = start("worker", *endless, "--rank", "0", "--bind", "127.0.0.1:0", "-v")
        address = ring_address(first)
        others = [
            start("worker", *endless, "--rank", str(rank), "--coordinator", address, "--bind", "127.0.0.1:0", "-v")
            for rank in (1, 2, 3)
        ]
        workers = [first, *others]
        for rank, worker in enumerate(workers):
            wait_for_step(worker, tmp_path / f"{rank}.log")
        os.kill(workers[victim].pid, signal.SIGKILL)
        for rank, worker in enumerate(workers):
            worker.wait(timeout=20)
            if rank != victim:
                last = (tmp_path / f"{rank}.log").read_text().strip().splitlines()[-1]
                assert worker.returncode == 1
                assert last.startswith("error: ")
                assert f"worker {victim}" in last, last


def wait_for_step(worker: Process, log: Path) -> None:
    """Return when the worker that writes `log` has made some steps."""
    wait_for(lambda: '"step": 3,' in log.read_text() or worker.poll() is not None, f"{log.name} tells of no step 3")
    assert worker.poll() is None, log.read_text()[-500:]


LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_workers_find_each_other_by_what_a_launcher_sets(tmp_path: Path, launcher: str) -> None:
    rank_name, size_name = LAUNCHERS[launcher]
    port = str(free_port())
    common = ("--exchange", "ring", "--set", "train.steps=20", "--json")
    with daemons(tmp_path) as start:
        workers = []
        for rank in range(3):
            environment = {rank_name: str(rank), size_name: "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            workers.append(start("worker", *common, f"{rank}.json", environment=environment))
        for rank, worker in enumerate(workers):
            assert worker.wait(timeout=60) == 0, (tmp_path / f"{rank}.log").read_text()[-500:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [result["rank"] for result in results] == [0, 1, 2]
    assert len({result["parameters_sha256"] for result in results}) == 1
