"""PowerSGD of scripts, through servers and around rings, beside the algorithm in plain NumPy."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.torch_workers import on_workers
from torch import nn

from taihu.core.base.errors import ConfigError
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

STEPS, WORKERS, RANK = 6, 3, 2
Arrays = list[NDArray[np.float32]]
WAYS: dict[str, dict[str, Any]] = {
    "ring": {},
    "ring, every layer": {"exchange": {"plan": "per-layer"}},
    "ring, one": {"exchange": {"plan": "single"}},
    "servers": {"servers": 2},
    "servers, every layer": {"servers": 2, "exchange": {"plan": "per-layer"}},
}


class Net(nn.Module):  # type: ignore[misc]
    """Matrices, a convolution, and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv2d(2, 12, 3)
        self.norm = nn.LayerNorm(12)
        self.last = nn.Linear(12, 9)

    def forward(self, inputs: Any) -> Any:
        """Scores."""
        return self.last(self.norm(torch.tanh(self.filters(inputs)).mean(dim=(2, 3))))


def made_model() -> nn.Module:
    """Alike in all threads, which share PyTorch's own generator."""
    generator, model = torch.Generator().manual_seed(3), Net()
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def gradients_of(model: nn.Module, rank: int, step: int) -> None:
    data = torch.Generator().manual_seed(100 * rank + step)
    inputs, labels = torch.randn(8, 2, 6, 6, generator=data), torch.randint(0, 9, (8,), generator=data)
    nn.functional.cross_entropy(model(inputs), labels).backward()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)


def values_of(model: nn.Module) -> Arrays:
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def train(world: World, steps: range = range(STEPS), states: Any = None) -> tuple[nn.Module, Any]:
    model = made_model()
    optimizer = DistributedOptimizer(sgd(model), model, world)
    if states is not None:
        model.load_state_dict(states[world.rank][0])
        optimizer.load_state_dict(states[world.rank][1])
    for step in steps:
        optimizer.zero_grad()
        gradients_of(model, world.rank, step)
        optimizer.step()
    return model, optimizer


def test_its_bits_are_those_of_every_worker_and_it_is_the_algorithm() -> None:
    def work(world: World) -> Arrays:
        return values_of(train(world)[0])

    tables = {"compression": {"method": "powersgd", "rank": RANK}, "train": {"seed": 5}}
    seen = {name: on_workers(WORKERS, work, **{**way, **tables}) for name, way in WAYS.items()}
    expected = by_hand(5)
    for name, of_way in seen.items():
        for own in of_way:
            assert [each.tobytes() for each in own] == [each.tobytes() for each in of_way[0]], name
        for own_value, exact in zip(of_way[0], expected, strict=True):
            np.testing.assert_allclose(own_value, exact, rtol=1e-3, atol=1e-4, err_msg=name)


def by_hand(seed: int) -> Arrays:
    """Algorithms 1 and 2 (Vogels et al. 2019), with momentum behind them, as the script has it."""
    model = made_model()
    optimizer, parameters = sgd(model), list(model.parameters())
    names = [name for name, _ in model.named_parameters()]
    held = [[np.zeros(p.shape, dtype=np.float64) for p in parameters] for _ in range(WORKERS)]
    rights: dict[int, NDArray[np.float64]] = {}
    for step in range(STEPS):
        given: list[list[NDArray[np.float64]]] = []
        for rank in range(WORKERS):
            model.zero_grad()
            gradients_of(model, rank, step)
            given.append([p.grad.numpy().astype(np.float64) for p in parameters if p.grad is not None])
        for place, parameter in enumerate(parameters):
            shape = tuple(parameter.shape)
            rows, columns = shape[0], int(np.prod(shape[1:], dtype=int))
            if len(shape) == 1 or (rows + columns) * RANK >= rows * columns:
                parameter.grad = torch.from_numpy(np.mean([each[place] for each in given], axis=0)).float()
                continue
            drawn = np.random.default_rng((seed, *names[place].encode()))
            first = drawn.standard_normal((RANK, columns), dtype=np.float32).T
            owed = [(held[rank][place] + given[rank][place]).reshape(rows, columns) for rank in range(WORKERS)]
            left = np.linalg.qr(np.mean([each @ rights.get(place, first) for each in owed], axis=0))[0]
            own = [each.T @ left for each in owed]
            for rank, each in enumerate(owed):
                held[rank][place] = (each - left @ own[rank].T).reshape(shape)
            rights[place] = np.mean(own, axis=0)
            parameter.grad = torch.from_numpy((left @ rights[place].T).reshape(shape)).float()
        optimizer.step()
    return values_of(model)


@pytest.mark.parametrize("way", ["ring", "servers"])
def test_a_state_goes_on_with_the_bits_of_a_run_that_did_not_end(way: str) -> None:
    tables = {**WAYS[way], "compression": {"method": "powersgd", "rank": RANK}}

    def first(world: World) -> Any:
        model, optimizer = train(world, range(3))
        return deepcopy((model.state_dict(), optimizer.state_dict()))

    saved = on_workers(WORKERS, first, **tables)
    assert "taihu.right" in saved[0][1]
    whole = on_workers(WORKERS, lambda world: values_of(train(world)[0]), **tables)
    halves = on_workers(WORKERS, lambda world: values_of(train(world, range(3, STEPS), saved)[0]), **tables)
    assert [each.tobytes() for each in whole[0]] == [each.tobytes() for each in halves[0]]


@pytest.mark.parametrize("servers", [0, 1])
def test_thin_matrices_go_and_come_back(servers: int) -> None:
    rank, rows, columns = 4, 200, 300

    def work(world: World) -> int:
        model = nn.Linear(columns, rows, bias=False)
        optimizer, totals = DistributedOptimizer(sgd(model), model, world), []
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, columns)).sum().backward()
            optimizer.step()
            session = world._session
            assert session is not None
            totals.append(session.exchange.totals().sent_bytes)
        return totals[1] - totals[0]

    tables: dict[str, dict[str, Any]] = {
        "compression": {"method": "powersgd", "rank": rank},
        "exchange": {"transport": "tcp"},
    }
    sent = on_workers(2, work, servers=servers, **tables)[0]
    # Two workers send each half of a ring's sums twice; a few bytes more are headers.
    assert 0 <= sent - 4 * rank * (rows + columns) < 600


def test_servers_that_update_are_refused() -> None:
    def work(world: World) -> None:
        model = made_model()
        DistributedOptimizer(sgd(model), model, world, update="servers")

    with pytest.raises(ConfigError, match=r'powersgd.*give update="workers"'):
        on_workers(2, work, servers=1, compression={"method": "powersgd"})
