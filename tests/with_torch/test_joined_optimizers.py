"""Workers with different numbers of batches and several optimizers, beside one process with all batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_scripts import taihu_run
from support.torch_workers import on_workers
from torch import nn

from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

WORKERS, FIRST = 3, 2
Wrap = Callable[[torch.optim.Optimizer, nn.Module], Any]


def batches_of(rank: int) -> int:
    return FIRST + 2 * rank


def batch(rank: int, step: int, width: int) -> torch.Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(1000 * width + 100 * rank + step))


class Models:
    """A maker and a judge with a norm that counts, made alike, with an optimizer each."""

    def __init__(self, wrap: Wrap, seed: int = 0) -> None:
        drawn = torch.Generator().manual_seed(seed)
        self.maker = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6))
        self.judge = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-0.4, 0.4, generator=drawn)
        self.making = wrap(torch.optim.Adam(self.maker.parameters(), lr=0.02, betas=(0.5, 0.9)), self.maker)
        self.judging = wrap(torch.optim.SGD(self.judge.parameters(), lr=0.1, momentum=0.9), self.judge)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.maker.parameters(), *self.judge.parameters()]

    def score(self, inputs: torch.Tensor, label: float) -> torch.Tensor:
        scores = self.judge(inputs)
        return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))


# A loop for one step: its backwards of whoever has a batch, which come before what it yields is done.
Backward = Callable[[int], torch.Tensor]
Loop = Callable[[Models, int], Iterator[Backward]]


def tutorial(models: Models, step: int) -> Iterator[Backward]:
    """Two backwards add to the judge's gradients, and the third one's are dropped by its module."""
    models.judge.zero_grad(set_to_none=step % 2 == 0)
    yield lambda rank: models.score(batch(rank, step, 6), 1.0)
    yield lambda rank: models.score(models.maker(batch(rank, step, 4)).detach(), 0.0)
    nn.utils.clip_grad_norm_(models.judge.parameters(), 0.1)
    models.judging.step()
    models.making.zero_grad()
    yield lambda rank: models.score(models.maker(batch(rank, step, 4)), 1.0)
    models.making.step()


def turns(models: Models, step: int) -> Iterator[Backward]:
    """No backward brings gradients of both, and the judge takes more steps than the maker."""
    models.judging.zero_grad()
    yield (
        lambda rank: (
            models.score(batch(rank, step, 6), 1.0) + models.score(models.maker(batch(rank, step, 4)).detach(), 0.0)
        )
    )
    models.judging.step()
    if step % 2:
        models.judge.requires_grad_(False)
        models.making.zero_grad()
        yield lambda rank: models.score(models.maker(batch(rank, step, 4)), 1.0)
        models.making.step()
        models.judge.requires_grad_(True)


def together(models: Models, step: int) -> Iterator[Backward]:
    models.judging.zero_grad()
    models.making.zero_grad()
    yield lambda rank: models.score(models.maker(batch(rank, step, 4)), 1.0)
    models.judging.step()
    models.making.step()


def alone(loop: Loop) -> Models:
    """Two epochs with the sums of the losses of all who have a batch, over all workers."""
    models = Models(lambda own, _: own)
    for _ in range(2):
        for step in range(batches_of(WORKERS - 1)):
            for backward in loop(models, step):
                ranks = [rank for rank in range(WORKERS) if step < batches_of(rank)]
                torch.stack([backward(rank) / WORKERS for rank in ranks]).sum().backward()
    return models


def joined(loop: Loop, world: World, update: Any = "workers") -> Models:
    models = Models(lambda own, of: DistributedOptimizer(own, of, world, update=update), world.rank)
    for _ in range(2):
        with models.judging.join():
            for step in range(batches_of(world.rank)):
                for backward in loop(models, step):
                    backward(world.rank).backward()
    return models


def state_of(optimizer: Any) -> list[torch.Tensor]:
    states = optimizer.state_dict()["state"].values()
    return [value for state in states for value in state.values() if value is not None]


WAYS: dict[str, tuple[Loop, dict[str, Any]]] = {
    "tutorial": (tutorial, {}),
    "tutorial, servers sum": (tutorial, {"servers": 1}),
    "turns": (turns, {}),
    "together": (together, {"train": {"check_every": 1}}),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_have_what_one_process_has_with_everybodys_batches(way: str) -> None:
    """Parameters and states of optimizers; clipping is the affair of those that step."""
    loop, tables = WAYS[way]
    expected = alone(loop)

    def work(world: World) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        models = joined(loop, world)
        values = [p.detach().clone() for p in models.parameters()]
        return values, state_of(models.making), state_of(models.judging)

    seen = on_workers(WORKERS, work, **tables)
    own = [p.detach() for p in expected.parameters()], state_of(expected.making), state_of(expected.judging)
    for each in seen:
        assert all(all(map(torch.equal, *pair)) for pair in zip(each, seen[0], strict=True))
        torch.testing.assert_close(each, own, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("loop", "zero"), [(turns, 1), (turns, 2), (together, 3)])
def test_servers_carry_out_what_others_have_batches_for(loop: Loop, zero: int) -> None:
    def work(world: World) -> list[torch.Tensor]:
        models = joined(loop, world, "servers")
        with models.making.gathered():
            return [p.detach().clone() for p in models.parameters()]

    expected = [p.detach() for p in alone(loop).parameters()]
    for seen in on_workers(WORKERS, work, servers=2, exchange={"zero": zero}):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)


def test_what_follows_the_block_goes_on_from_there() -> None:
    """Epochs of uneven batches, steps that all make between, and a worker whose gradients are kept meanwhile."""

    def train(models: Models, ranks: list[int], size: int, block: Any) -> None:
        for epoch in range(2):
            with block():
                for step in range(max(batches_of(rank) for rank in ranks)):
                    for backward in together(models, step):
                        losses = [backward(rank) / size for rank in ranks if step < batches_of(rank)]
                        torch.stack(losses).sum().backward()
            for backward in together(models, 50 + epoch):
                torch.stack([backward(rank) / size for rank in ranks]).sum().backward()

    def work(world: World) -> list[torch.Tensor]:
        models = Models(lambda own, of: DistributedOptimizer(own, of, world), world.rank)
        train(models, [world.rank], 1, models.making.join)
        return [p.detach().clone() for p in models.parameters()]

    models = Models(lambda own, _: own)
    train(models, [*range(WORKERS)], WORKERS, nullcontext)
    for seen in on_workers(WORKERS, work):
        torch.testing.assert_close(seen, [p.detach() for p in models.parameters()], rtol=1e-4, atol=1e-6)


def test_the_command_with_uneven_batches_ends_alike(tmp_path: Path) -> None:
    done = taihu_run(tmp_path, script="several.py", arguments=("tutorial", "workers", "out", "4"), workers=2)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"out.{rank}").read_text()) for rank in range(2))
    assert first["values"] == second["values"]
    assert [len(each["losses"]) for each in (first, second)] == [12, 15]
