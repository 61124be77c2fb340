"""Learning rates of a script that rise do not enlarge what compression holds back of its gradients."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.torch_workers import on_workers
from torch import nn

from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

STEPS, WORKERS, DENSITY = 6, 2, 0.2
RATES = (0.0, 0.1, 0.3, 0.3, 0.05, 0.2)
"""Of the first group; the second one has the square root."""
LAGS: dict[str, Any] = {"method": "lags", "density": DENSITY}
Arrays = list[NDArray[np.float32]]


def made_model() -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def rates_of(step: int) -> tuple[float, float]:
    return RATES[step], math.sqrt(RATES[step])


def backward(model: nn.Module, rank: int, step: int) -> None:
    data = torch.Generator().manual_seed(100 * rank + step)
    inputs, labels = torch.randn(16, 12, generator=data), torch.randint(0, 4, (16,), generator=data)
    nn.functional.cross_entropy(model(inputs), labels).backward()


def sgd(model: nn.Module) -> torch.optim.SGD:
    first, *others = model.parameters()
    return torch.optim.SGD([{"params": [first]}, {"params": others}], lr=1.0)


def train(world: World, model: nn.Module, update: Literal["workers", "servers"], *, until: int = STEPS) -> Any:
    optimizer = DistributedOptimizer(sgd(model), model, world, update=update)
    for step in range(until):
        take_step(optimizer, model, world.rank, step)
    return optimizer


def take_step(optimizer: Any, model: nn.Module, rank: int, step: int) -> None:
    for group, rate in zip(optimizer.param_groups, rates_of(step), strict=True):
        group["lr"] = rate
    optimizer.zero_grad()
    backward(model, rank, step)
    optimizer.step()


def values_of(model: nn.Module) -> Arrays:
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def expected(*, lowers: bool) -> Arrays:
    """LAGS with error feedback, worker by worker; of what is held back less is left as the rate rises."""
    model = made_model()
    parameters = list(model.parameters())
    held = [[np.zeros(p.numel(), dtype=np.float64) for p in parameters] for _ in range(WORKERS)]
    for step in range(STEPS):
        sums = [np.zeros(p.numel()) for p in parameters]
        for rank in range(WORKERS):
            model.zero_grad()
            backward(model, rank, step)
            for place, parameter in enumerate(parameters):
                of_group = int(place > 0)
                before, now = rates_of(max(step - 1, 0))[of_group], rates_of(step)[of_group]
                weight = before / now if now > before and lowers else 1.0
                assert parameter.grad is not None
                own = held[rank][place] * weight + parameter.grad.numpy().ravel()
                kept = max(1, math.ceil(DENSITY * len(own)))
                chosen = np.abs(own) >= np.sort(np.abs(own))[-kept]
                sums[place] += np.where(chosen, own, 0.0)
                held[rank][place] = np.where(chosen, 0.0, own)
        with torch.no_grad():
            for place, total in enumerate(sums):
                change = rates_of(step)[int(place > 0)] * total.reshape(parameters[place].shape) / WORKERS
                parameters[place].sub_(torch.from_numpy(change).float())
    return values_of(model)


@pytest.mark.parametrize("rises", ["auto", "yes"])
@pytest.mark.parametrize(("servers", "update"), [(0, "workers"), (2, "workers"), (2, "servers")])
def test_rates_that_rise_do_not_enlarge_what_is_held_back(
    servers: int, update: Literal["workers", "servers"], rises: str
) -> None:
    def work(world: World) -> Arrays:
        model = made_model()
        train(world, model, update).synchronize()
        return values_of(model)

    seen = on_workers(WORKERS, work, servers=servers, compression={**LAGS, "held_back_rises": rises})
    for own, exact in zip(seen[0], expected(lowers=rises == "auto"), strict=True):
        np.testing.assert_allclose(own, exact, rtol=1e-4, atol=1e-5)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*seen, strict=True))


def test_a_state_goes_on_with_the_rate_that_it_has_seen() -> None:
    def whole(world: World) -> Arrays:
        model = made_model()
        train(world, model, "workers")
        return values_of(model)

    def halves(world: World) -> Arrays:
        model = made_model()
        first = train(world, model, "workers", until=2)
        return [first.state_dict(), model.state_dict()]

    saved: list[Any] = on_workers(WORKERS, halves, compression=LAGS)

    def second_half(world: World) -> Arrays:
        model = made_model()
        optimizer = DistributedOptimizer(sgd(model), model, world)
        of_optimizer, of_model = saved[world.rank]
        model.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
        for step in range(2, STEPS):
            take_step(optimizer, model, world.rank, step)
        return values_of(model)

    one, other = (on_workers(WORKERS, work, compression=LAGS)[0] for work in (whole, second_half))
    assert [each.tobytes() for each in one] == [each.tobytes() for each in other]
