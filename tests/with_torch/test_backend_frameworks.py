"""Scripts by the frameworks with nothing but the backend's word changed: their losses are Gloo's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest
import torch.distributed as dist
from support.daemons import free_port
from support.torch_ranks import on_ranks
from support.torch_scripts import SCRIPTS

RANKS = 2
FRAMEWORKS = {
    "DistributedDataParallel": "ddp.py",
    "FullyShardedDataParallel": "fsdp.py",
    "accelerate": "accelerated.py",
    "pytorch_lightning": "lightning.py",
}
BACKENDS = ("gloo", "taihu")
Losses = dict[str, list[float]]


def run_all(rank: int, ports: Mapping[tuple[str, str], int]) -> dict[str, Losses]:
    """The losses by frameworks and backends, as a rank that torchrun has started."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    losses: dict[str, Losses] = {framework: {} for framework in FRAMEWORKS}
    for (framework, backend), port in ports.items():
        os.environ["MASTER_PORT"] = str(port)
        dist.destroy_process_group()
        losses[framework][backend] = run(FRAMEWORKS[framework], backend)
    return losses


def run(script: str, backend: str) -> list[float]:
    text = (SCRIPTS / script).read_text()
    assert text.count('"gloo"') == 1
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text.replace('"gloo"', f'"{backend}"'), script, "exec"), names)  # noqa: S102 - a script of ours
    assert dist.get_backend() == backend
    if script == FRAMEWORKS["accelerate"]:
        import_module("accelerate.state").AcceleratorState._reset_state(True)
    return list(names["losses"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Losses]]:
    ports = {(framework, backend): free_port() for framework in FRAMEWORKS for backend in BACKENDS}
    return on_ranks(RANKS, tmp_path_factory.mktemp("frameworks"), run_all, ports)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_losses_are_those_of_gloo(framework: str, trained: list[dict[str, Losses]]) -> None:
    for losses in (each[framework] for each in trained):
        assert losses["taihu"] == pytest.approx(losses["gloo"], rel=1e-5)
        assert len(set(losses["taihu"])) > 16
