"""`taihu node` as srun and torchrun start it: by their variables, set by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.daemons import free_port

from taihu.core.job.environment import without_settings

Variables = Callable[[int, int], dict[str, str]]


def srun(rank: int, size: int) -> dict[str, str]:
    """As on a cluster whose one node is this machine."""
    numbers = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size), "SLURM_JOB_ID": str(os.getpid())}
    return {**numbers, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node7", "SLURM_JOB_NODELIST": "node[6-7]"}


def srun_on_two_nodes(rank: int, size: int) -> dict[str, str]:
    """As on two nodes, the first of which is told by its name."""
    return {**srun(rank, size), "SLURM_STEP_NODELIST": "localhost,other"}


def torchrun(rank: int, size: int) -> dict[str, str]:
    """As of `torchrun --standalone`, whose own port is taken."""
    numbers = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    store = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    return {**numbers, **store, "TORCHELASTIC_RUN_ID": str(os.getpid())}


@pytest.mark.parametrize(
    ("launcher", "exchange"), [(srun, "server"), (srun_on_two_nodes, "ring"), (torchrun, "server")]
)
def test_every_process_takes_its_role(launcher: Variables, exchange: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("taihu")), "node", "--exchange", exchange, "--set", "train.steps=3"]
    servers = [] if exchange == "ring" else ["--servers", "1"]
    first = launcher(0, 3)
    running = [
        subprocess.Popen(
            [*command, *servers, "--json", "result.json"],
            cwd=tmp_path,
            env={**without_settings(os.environ), **first, **rank_of(launcher(rank, 3))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], outputs
    spoke = [bool(output) for output, _ in outputs]
    assert spoke == ([True, False, False] if exchange == "ring" else [False, True, False])
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == 3


def rank_of(variables: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if name in {"RANK", "LOCAL_RANK", "SLURM_PROCID"}}
