"""Scripts that train over `taihu` with nothing but the word changed: their losses are Gloo's to rounding."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.torch_ranks import on_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 4
Wrapped = tuple[Any, Any]


def made_model() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def ddp(group: Any) -> Wrapped:
    model = DistributedDataParallel(made_model(), process_group=group, bucket_cap_mb=0.05)
    return model, sgd(model)


def ddp_in_16_bits(group: Any) -> Wrapped:
    model = DistributedDataParallel(made_model(), process_group=group)
    model.register_comm_hook(group, fp16_compress_hook)
    return model, sgd(model)


def zero(group: Any) -> Wrapped:
    model = DistributedDataParallel(made_model(), process_group=group)
    # Where it is imported it warns of what it imports.
    optimizer = import_module("torch.distributed.optim").ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, process_group=group, lr=0.05, momentum=0.9
    )
    return model, optimizer


def fsdp(group: Any) -> Wrapped:
    model = FullyShardedDataParallel(made_model(), process_group=group, device_id=torch.device("cpu"))
    return model, sgd(model)


def fsdp_by_module(group: Any) -> Wrapped:
    mesh = dist.DeviceMesh.from_group(group, "cpu")
    model = made_model()
    for layer in (model[4], model[6]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, sgd(model)


WAYS: dict[str, Callable[[Any], Wrapped]] = {
    "DistributedDataParallel": ddp,
    "fp16_compress_hook": ddp_in_16_bits,
    "ZeroRedundancyOptimizer": zero,
    "FullyShardedDataParallel": fsdp,
    "fully_shard": fsdp_by_module,
}


def losses(way: str, group: Any, rank: int) -> list[float]:
    model, optimizer = WAYS[way](group)
    generator = torch.Generator().manual_seed(rank)
    seen = []
    for _ in range(STEPS):
        images = torch.rand(6, 3, 8, 8, generator=generator)
        labels = torch.randint(0, 10, (6,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        seen.append(float(loss))
    return seen


def train(rank: int) -> dict[str, tuple[list[float], list[float]]]:
    gloo, taihu = dist.new_group(backend="gloo"), dist.group.WORLD
    return {way: (losses(way, taihu, rank), losses(way, gloo, rank)) for way in WAYS}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[list[float], list[float]]]]:
    return on_ranks(2, tmp_path_factory.mktemp("training"), train)


@pytest.mark.parametrize("way", WAYS)
def test_losses_are_those_of_gloo(way: str, trained: list[dict[str, tuple[list[float], list[float]]]]) -> None:
    for own, other in (each[way] for each in trained):
        assert own == pytest.approx(other, rel=1e-5)
        assert own[-1] != own[0]


def cross_entropy_of_workers(rank: int) -> float:
    """As scripts load data: processes that load are forks of one that has connections."""
    data = torch.utils.data.TensorDataset(torch.rand(12, 3, 8, 8), torch.zeros(12, dtype=torch.int64))
    model = DistributedDataParallel(made_model())
    optimizer = sgd(model)
    loader = torch.utils.data.DataLoader(data, batch_size=3, num_workers=2)
    loss = torch.zeros(())
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    return float(loss)


def test_loaders_fork_beside_the_group(tmp_path: Path) -> None:
    assert len(on_ranks(2, tmp_path, cross_entropy_of_workers)) == 2
