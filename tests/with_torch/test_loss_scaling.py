"""Losses in 16 bits, and scaled ones: all workers skip the same steps and come to the same scale."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from support.torch_workers import on_workers
from torch import nn

from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

STEPS, WORKERS, BAD = 8, 3, (1, 2)
WAYS: dict[str, dict[str, Any]] = {
    "ring": {},
    "servers": {"servers": 2},
    "ring, dlgs": {"compression": {"method": "dlgs", "density": 0.25}},
    "servers, dlgs": {"servers": 2, "compression": {"method": "dlgs", "density": 0.25}},
}
Seen = tuple[list[float], list[bytes]]


def made_model() -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def loss_of(model: nn.Module, rank: int, step: int, half: torch.dtype | None) -> Any:
    """The loss of a worker in a step; in a bad one its gradients are infinite."""
    data = torch.Generator().manual_seed(100 * rank + step)
    inputs, labels = torch.randn(16, 12, generator=data), torch.randint(0, 4, (16,), generator=data)
    with torch.autocast("cpu", dtype=half or torch.bfloat16, enabled=half is not None):
        loss = nn.functional.cross_entropy(model(inputs).float(), labels)
    return loss * float("inf") if (rank, step) == BAD else loss


def train(model: nn.Module, optimizer: Any, losses: Callable[[int], Any]) -> Seen:
    """The scale and the parameters behind each step, as scripts scale their losses."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scales, parameters = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(losses(step)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        parameters.append(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    return scales, parameters


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


@pytest.mark.parametrize("half", [None, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("way", WAYS)
def test_all_workers_skip_what_is_not_finite_on_one(way: str, half: torch.dtype | None) -> None:
    start = made_model()

    def work(world: World) -> Seen:
        model = deepcopy(start)
        optimizer = DistributedOptimizer(sgd(model), model, world)
        return train(model, optimizer, lambda step: loss_of(model, world.rank, step, half))

    seen = on_workers(WORKERS, work, **WAYS[way])
    assert all(each == seen[0] for each in seen)
    scales, parameters = seen[0]
    # Grown after three good steps, halved by the bad one; the first two of them are good.
    assert scales == [1024.0, 1024.0, 512.0, 512.0, 512.0, 1024.0, 1024.0, 1024.0]
    assert parameters[2] == parameters[1]
    assert len(set(parameters)) == STEPS - 1
    if "dlgs" not in way:
        whole = deepcopy(start)
        _, alone = train(whole, sgd(whole), lambda step: mean_loss(whole, step, half))
        values = [torch.frombuffer(bytearray(each[-1]), dtype=torch.float32) for each in (parameters, alone)]
        torch.testing.assert_close(values[0], values[1], rtol=2e-2 if half else 1e-4, atol=2e-2 if half else 1e-5)


def mean_loss(model: nn.Module, step: int, half: torch.dtype | None) -> Any:
    """In one process: the mean of all workers' losses."""
    return torch.stack([loss_of(model, rank, step, half) for rank in range(WORKERS)]).mean()
