"""Runs without servers, of real processes: workers find each other, and no one outlives a dead peer."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.daemons import Process, daemons, free_port, ring_address, wait_for


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_survivors_of_a_killed_worker_end_and_name_it(tmp_path: Path, victim: int) -> None:
    forever = ("--set", "train.steps=1000000", "--set", "train.evaluate=false")
    endless = ("--exchange", "ring", "--workers", "4", *forever)
    with daemons(tmp_path) as start:
        first = start("taihu.worker", *endless, "--rank", "0", "--bind", "127.0.0.1:0", "-v")
        address = ring_address(first)
        others = [
            start(
                "taihu.worker", *endless, "--rank", str(rank), "--coordinator", address, "--bind", "127.0.0.1:0", "-v"
            )
            for rank in (1, 2, 3)
        ]
        workers = [first, *others]
        for rank, worker in enumerate(workers):
            wait_for_step(worker, tmp_path / f"{rank}.log")
        os.kill(workers[victim].pid, signal.SIGKILL)
        for rank, worker in enumerate(workers):
            worker.wait(timeout=600)
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
    common = ("--exchange", "ring", "--set", "train.steps=5", "--set", "train.evaluate=false", "--json")
    with daemons(tmp_path) as start:
        workers = []
        for rank in range(3):
            environment = {rank_name: str(rank), size_name: "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            workers.append(start("taihu.worker", *common, f"{rank}.json", environment=environment))
        for rank, worker in enumerate(workers):
            assert worker.wait(timeout=600) == 0, (tmp_path / f"{rank}.log").read_text()[-500:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [result["rank"] for result in results] == [0, 1, 2]
    assert len({result["parameters_sha256"] for result in results}) == 1
