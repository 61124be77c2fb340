"""Local steps of scripts: where workers in turns end by the formulas of DiLoCo, and what is saved in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_workers import on_workers

from taihu.core.base.errors import ConfigError
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

COUNT = 3
STEPS = 7


def model_of() -> torch.nn.Sequential:
    """Workers are threads: the generator that they share draws nothing."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    drawn = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5, generator=drawn)
    return model


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 6, generator=drawn), torch.randint(3, (8,), generator=drawn)


def train_one(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    inputs, targets = batch(rank, step)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def values_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def in_turns(size: int, rate: float, momentum: float) -> torch.Tensor:
    """The end of workers by PyTorch's own AdamW inside, and by the outer step as printed, in double precision."""
    models = [model_of() for _ in range(size)]
    optimizers = list(map(adamw, models))
    common = values_of(models[0]).double()
    velocity = torch.zeros_like(common)
    for step in range(1, STEPS + 1):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            train_one(model, optimizer, rank, step)
        if step % COUNT and step != STEPS:
            continue
        mean = torch.stack([common - values_of(model).double() for model in models]).mean(0)
        velocity = momentum * velocity + mean
        common = common - rate * (mean + momentum * velocity if momentum else mean)
        for model in models:
            torch.nn.utils.vector_to_parameters(common.float(), model.parameters())
    return common


def ended(world: World) -> torch.Tensor:
    model = model_of()
    optimizer = DistributedOptimizer(adamw(model), model, world)
    for step in range(1, STEPS + 1):
        train_one(model, optimizer, world.rank, step)
    optimizer.synchronize()
    return values_of(model)


WAYS: dict[str, dict[str, Any]] = {
    "ring": {},
    "servers": {"servers": 2},
    "momentum": {"servers": 1, "exchange": {"outer_momentum": 0.9}},
}


@pytest.mark.parametrize("way", WAYS)
def test_scripts_end_where_workers_in_turns_end(way: str) -> None:
    settings = dict(WAYS[way])
    exchange = {"local_steps": COUNT, **settings.pop("exchange", {})}
    ends = on_workers(3, ended, exchange=exchange, **settings)
    momentum = exchange.get("outer_momentum", 0.0)
    expected = in_turns(3, 0.7 if momentum else 1.0, momentum)
    for each in ends:
        assert torch.equal(each, ends[0])
    torch.testing.assert_close(ends[0].double(), expected, rtol=1e-4, atol=1e-5)


def test_what_is_exchanged_may_be_compressed() -> None:
    compression = {"method": "dlgs", "density": 0.3}
    ends = on_workers(2, ended, servers=1, exchange={"local_steps": COUNT}, compression=compression)
    dense = on_workers(2, ended, servers=1, exchange={"local_steps": COUNT})
    assert torch.equal(ends[0], ends[1])
    start = values_of(model_of())
    # Most of the way, though a third of the values goes at a time.
    assert (ends[0] - dense[0]).norm() < 0.7 * (dense[0] - start).norm()


def test_a_script_goes_on_in_the_middle_of_its_local_steps() -> None:
    exchange = {"local_steps": COUNT, "outer_momentum": 0.5}

    def first_part(world: World) -> tuple[Any, Any]:
        model = model_of()
        optimizer = DistributedOptimizer(adamw(model), model, world)
        for step in range(1, 6):
            train_one(model, optimizer, world.rank, step)
        return model.state_dict(), optimizer.state_dict()

    kept = on_workers(2, first_part, exchange=exchange)

    def second_part(world: World) -> torch.Tensor:
        model = model_of()
        optimizer = DistributedOptimizer(adamw(model), model, world)
        of_model, of_optimizer = kept[world.rank]
        model.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
        for step in range(6, STEPS + 1):
            train_one(model, optimizer, world.rank, step)
        optimizer.synchronize()
        return values_of(model)

    whole, parts = on_workers(2, ended, exchange=exchange), on_workers(2, second_part, exchange=exchange)
    assert torch.equal(whole[0], parts[0])


def test_optimizers_take_their_local_steps_each_for_itself() -> None:
    """Two halves of a model, stepped unequally often, end as each would alone."""

    def both(world: World) -> list[torch.Tensor]:
        models = [model_of(), model_of()]
        optimizers = [DistributedOptimizer(adamw(model), model, world) for model in models]
        for step in range(1, 2 * COUNT + 1):
            train_one(models[0], optimizers[0], world.rank, step)
            if step % 2:
                train_one(models[1], optimizers[1], world.rank, step)
        optimizers[0].synchronize()
        return [values_of(model) for model in models]

    def second(world: World) -> torch.Tensor:
        model = model_of()
        optimizer = DistributedOptimizer(adamw(model), model, world)
        for step in range(1, 2 * COUNT + 1, 2):
            train_one(model, optimizer, world.rank, step)
        return values_of(model)

    exchange = {"local_steps": COUNT}
    ends = on_workers(2, both, exchange=exchange)
    assert torch.equal(ends[0][0], ends[1][0])
    alone = on_workers(2, second, exchange=exchange)
    for rank in range(2):
        torch.testing.assert_close(ends[rank][1], alone[rank])


def test_a_parameter_that_comes_later_takes_part() -> None:
    def grows(world: World) -> torch.Tensor:
        model = model_of()
        first, last = model[0], model[2]
        optimizer = DistributedOptimizer(torch.optim.SGD(first.parameters(), lr=0.1), model, world)
        train_one(model, optimizer, world.rank, 1)
        optimizer.synchronize()
        optimizer.add_param_group({"params": [*last.parameters()], "lr": 0.1})
        for step in range(2, 2 + COUNT):
            train_one(model, optimizer, world.rank, step)
        return values_of(model)

    ends = on_workers(2, grows, exchange={"local_steps": COUNT})
    assert torch.equal(ends[0], ends[1])


def refused(use: Callable[[World], object], match: str, **settings: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        on_workers(2, use, exchange={"local_steps": COUNT}, **settings)


def test_what_does_not_go_with_local_steps_says_so() -> None:
    def served(world: World) -> None:
        model = model_of()
        DistributedOptimizer(adamw(model), model, world, update="servers")

    def joined(world: World) -> None:
        model = model_of()
        with DistributedOptimizer(adamw(model), model, world).join():
            pass

    def loaded(world: World) -> None:
        model = model_of()
        optimizer = DistributedOptimizer(adamw(model), model, world)
        optimizer.load_state_dict(adamw(model_of()).state_dict())

    refused(served, 'update="servers": the optimizer updates here in local steps', servers=1)
    refused(joined, r"join\(\): workers exchange after so many local steps")
    refused(loaded, r"no local steps of parameter 0, of shape \(5, 6\)")
