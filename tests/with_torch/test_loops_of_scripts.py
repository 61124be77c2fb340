"""Habits of PyTorch scripts, beside plain PyTorch: samplers, batch norm, tests by one rank, layers that come late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from support.torch_workers import on_workers
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from taihu.core.wire.base.patience import Patience
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

WORKERS, EPOCHS, LATE, GONE = 3, 3, 6, 9
WAYS: dict[str, dict[str, Any]] = {"ring": {}, "servers": {"servers": 2}}


class Net(nn.Module):  # type: ignore[misc]
    """Batch norm, and a branch that takes part from a step on, for some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.late = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, inputs: Any, step: int) -> Any:
        """Scores; `step` says whether the branch is there."""
        hidden = torch.relu(self.norm(self.first(inputs)))
        if LATE <= step < GONE:
            hidden = hidden + torch.tanh(self.late(hidden))
        return self.last(hidden)


def made_model(seed: int) -> Net:
    model = Net()
    # Workers are threads: the generator that layers draw from belongs to all of them.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.4, 0.4, generator=generator)
        model.norm.running_mean += seed
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches(rank: int) -> Iterator[tuple[int, Any, Any]]:
    """Steps from 0, inputs and labels; as scripts draw them: 50 samples do not divide by three, nor batches of 5."""
    generator = torch.Generator().manual_seed(4)
    data = TensorDataset(torch.randn(50, 6, generator=generator), torch.randint(0, 3, (50,), generator=generator))
    sampler = DistributedSampler(data, WORKERS, rank, shuffle=True)
    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in DataLoader(data, batch_size=5, sampler=sampler):
            yield step, inputs, labels
            step += 1


def backward(model: nn.Module, step: int, inputs: Any, labels: Any) -> None:
    nn.functional.cross_entropy(model(inputs, step), labels).backward()


def values_of(tensors: Any) -> Any:
    return torch.cat([each.detach().to(torch.float64).reshape(-1) for each in tensors])


def replicas() -> list[Net]:
    """Models of all workers in the end: plain copies in one process, whose gradients are averaged by hand."""
    models = [deepcopy(made_model(0)) for _ in range(WORKERS)]
    optimizers = [sgd(model) for model in models]
    for drawn in zip(*(batches(rank) for rank in range(WORKERS)), strict=True):
        for model, (step, inputs, labels) in zip(models, drawn, strict=True):
            model.zero_grad()
            backward(model, step, inputs, labels)
        for parameters in zip(*(model.parameters() for model in models), strict=True):
            if all(p.grad is None for p in parameters):
                continue  # as in one process: momentum does not move it
            own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            mean = torch.stack(own).mean(0)
            for parameter in parameters:
                parameter.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    return models


@pytest.mark.parametrize("way", WAYS)
def test_samplers_batch_norm_and_late_layers_are_those_of_copies_in_one_process(way: str) -> None:
    def work(world: World) -> tuple[Any, Any, Any]:
        model = made_model(world.rank)
        optimizer = DistributedOptimizer(sgd(model), model, world)
        for step, inputs, labels in batches(world.rank):
            optimizer.zero_grad()
            backward(model, step, inputs, labels)
            optimizer.step()
        own = values_of(model.buffers())
        world.bring([*model.parameters(), *model.buffers()])
        return values_of(model.parameters()), own, values_of(model.buffers())

    expected = replicas()
    seen = on_workers(WORKERS, work, **WAYS[way])
    for (parameters, own, brought), plain in zip(seen, expected, strict=True):
        assert torch.equal(parameters, seen[0][0])
        torch.testing.assert_close(parameters, values_of(plain.parameters()), rtol=1e-4, atol=1e-5)
        # Each has seen other samples; worker 0's are everybody's where a script asks for that.
        torch.testing.assert_close(own, values_of(plain.buffers()), rtol=1e-4, atol=1e-5)
        assert torch.equal(brought, seen[0][1])
    assert not torch.equal(seen[0][1], seen[1][1])


def test_an_optimizer_without_its_model_exchanges_as_much() -> None:
    """Nobody tells of forwards: gradients are copied, and those of a late layer are not there at first."""

    def work(world: World) -> Any:
        model = made_model(world.rank)
        optimizer = DistributedOptimizer(sgd(model), None, world)
        for step, inputs, labels in batches(world.rank):
            optimizer.zero_grad()
            backward(model, step, inputs, labels)
            optimizer.step()
        return values_of(model.parameters())

    first, *others = on_workers(WORKERS, work)
    assert all(torch.equal(first, other) for other in others)
    torch.testing.assert_close(first, values_of(replicas()[0].parameters()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_others_wait_for_a_test_by_worker_0_as_long_as_it_takes(way: str, before: int) -> None:
    """Longer than a worker may stand still: what it does before a step, the first one too, is its own affair."""
    lost_after_s = 0.6
    tested_s = 1.25 * Patience(lost_after_s).still_after_s

    def work(world: World) -> Any:
        model = made_model(0)
        optimizer = DistributedOptimizer(sgd(model), model, world)
        for step, inputs, labels in batches(world.rank):
            if step == before and world.rank == 0:
                until = time.monotonic() + tested_s
                model.eval()
                with torch.no_grad():
                    while time.monotonic() < until:
                        model(inputs, step)
                        time.sleep(0.05)
                model.train()
            optimizer.zero_grad()
            backward(model, step, inputs, labels)
            optimizer.step()
        return values_of(model.parameters())

    cluster = {"lost_after_s": lost_after_s, "heartbeat_s": 0.05}
    first, *others = on_workers(WORKERS, work, cluster=cluster, **WAYS[way])
    assert all(torch.equal(first, other) for other in others)


def test_a_worker_whose_script_fails_ends_the_others_with_its_message() -> None:
    seen: dict[int, str] = {}

    def work(world: World) -> None:
        model = made_model(0)
        optimizer = DistributedOptimizer(sgd(model), model, world)
        try:
            for step, inputs, labels in batches(world.rank):
                if (world.rank, step) == (1, 2):
                    raise ValueError("no paper left")
                optimizer.zero_grad()
                backward(model, step, inputs, labels)
                optimizer.step()
        except Exception as error:
            seen[world.rank] = str(error)
            raise

    with pytest.raises(Exception, match="no paper left"):
        on_workers(WORKERS, work)
    assert sorted(seen) == [0, 1, 2]
    assert all("no paper left" in text for text in seen.values()), seen
