"""Several optimizers that servers carry out, beside one process with all samples, and what is refused of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.torch_scripts import SCRIPTS, taihu_run
from support.torch_workers import on_workers
from torch import nn

from taihu.core.base.errors import ConfigError, RunError, TaihuError
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

BATCH, WORKERS = 12, 2
Wrap = Callable[[torch.optim.Optimizer, nn.Module], Any]


def read(path: Path) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = json.loads(path.read_text())
    return seen


def alone(folder: Path, loop: str) -> dict[str, list[float]]:
    plain = [sys.executable, str(SCRIPTS / "several.py"), loop, "plain", "plain"]
    subprocess.run(plain, cwd=folder, check=True, timeout=60)
    return read(folder / "plain")


def compare(folder: Path, expected: dict[str, list[float]]) -> None:
    seen = [read(folder / f"out.{rank}") for rank in range(WORKERS)]
    np.testing.assert_allclose(np.mean([each["losses"] for each in seen], axis=0), expected["losses"], rtol=1e-5)
    np.testing.assert_allclose(seen[0]["values"], expected["values"], atol=1e-5)
    assert seen[0]["values"] == seen[1]["values"]


@pytest.mark.parametrize(
    ("loop", "flags"),
    [("parts", ("--servers", "1")), ("turns", ("--servers", "1")), ("turns", ("--servers", "2", "--zero", "2"))],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else each,
)
def test_the_command_trains_as_one_process(tmp_path: Path, loop: str, flags: tuple[str, ...]) -> None:
    """Adam beside SGD with momentum, with rates of their own: behind one backward, and in turns, one frozen."""
    done = taihu_run(tmp_path, *flags, script="several.py", arguments=(loop, "servers", "out"), workers=WORKERS)
    assert done.returncode == 0, done.stderr
    compare(tmp_path, alone(tmp_path, loop))


def made(*sizes: int, seed: int) -> nn.Sequential:
    # Workers are threads: the generator that layers draw from belongs to all of them.
    layers: list[nn.Module] = []
    for size, after in pairwise(sizes):
        layers += [nn.Linear(size, after), nn.Tanh()]
    model, drawn = nn.Sequential(*layers[:-1]), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.4, 0.4, generator=drawn)
    return model


def batch(step: int, share: slice) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(70 + step)
    inputs, labels = torch.randn(BATCH, 6, generator=drawn), torch.randn(BATCH, 3, generator=drawn)
    return inputs[share], labels[share]


def three_rules(seed: int, wrap: Wrap) -> tuple[nn.Sequential, list[Any]]:
    """Two Adams with betas of their own, and an SGD, of parameters that alternate in the order of backward."""
    model = made(6, 10, 8, 3, seed=seed)
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights[:1], "lr": 0.02}, {"params": weights[1:2], "weight_decay": 0.2}]
    return model, [
        wrap(torch.optim.AdamW(groups, lr=0.01, betas=(0.7, 0.9)), model),
        wrap(torch.optim.Adam(weights[2:], lr=0.03), model),
        wrap(torch.optim.SGD(biases, lr=0.1, momentum=0.9, nesterov=True), model),
    ]


def losses_of(
    model: nn.Module, optimizers: list[Any], share: slice, chosen: Callable[[int], list[int]]
) -> list[float]:
    """Twelve steps, each of some optimizers: the parameters of the others are frozen."""
    losses = []
    for step in range(12):
        turn = chosen(step)
        for position, optimizer in enumerate(optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.requires_grad_(position in turn)
        for position in turn:
            optimizers[position].zero_grad()
        inputs, labels = batch(step, share)
        loss = nn.functional.mse_loss(model(inputs), labels)
        loss.backward()
        for position in turn:
            optimizers[position].step()
        losses.append(loss.item())
    return losses


TURNS: dict[str, Callable[[int], list[int]]] = {
    "all": lambda _: [0, 1, 2],
    "in turns": lambda step: [[0, 1, 2], [1], [2, 0], [2]][step % 4],
}
WAYS: dict[str, dict[str, Any]] = {
    "stage 1": {},
    "stage 2": {"exchange": {"zero": 2, "plan": "bucket:200B", "transport": "tcp"}},
    "one group": {"exchange": {"plan": "single", "transport": "grpc"}},
    "compressed": {"compression": {"method": "lags", "density": 1.0}},
}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("way", WAYS)
def test_each_optimizer_counts_its_own_steps(way: str, turn: str) -> None:
    """The bias correction of one that steps seldom is that of one process, by whatever way gradients go."""

    def work(world: World) -> tuple[list[float], list[torch.Tensor]]:
        model, optimizers = three_rules(
            world.rank, lambda own, of: DistributedOptimizer(own, of, world, update="servers")
        )
        share = slice(world.rank * BATCH // world.size, (world.rank + 1) * BATCH // world.size)
        losses = losses_of(model, optimizers, share, TURNS[turn])
        optimizers[1].synchronize()
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    model, optimizers = three_rules(0, lambda own, _: own)
    expected = losses_of(model, optimizers, slice(0, BATCH), TURNS[turn])
    seen = on_workers(WORKERS, work, servers=2, **WAYS[way])
    np.testing.assert_allclose(np.mean([losses for losses, _ in seen], axis=0), expected, rtol=1e-4)
    for _, own in seen:
        assert all(map(torch.equal, own, seen[0][1]))
        torch.testing.assert_close(own, [*model.parameters()], rtol=1e-4, atol=1e-5)


def test_stage_3_trains_all_optimizers_behind_each_backward() -> None:
    def work(world: World) -> list[float]:
        model, optimizers = three_rules(
            world.rank, lambda own, of: DistributedOptimizer(own, of, world, update="servers")
        )
        share = slice(world.rank * BATCH // world.size, (world.rank + 1) * BATCH // world.size)
        return losses_of(model, optimizers, share, TURNS["all"])

    model, optimizers = three_rules(0, lambda own, _: own)
    expected = losses_of(model, optimizers, slice(0, BATCH), TURNS["all"])
    seen = on_workers(WORKERS, work, servers=1, exchange={"zero": 3})
    np.testing.assert_allclose(np.mean(seen, axis=0), expected, rtol=1e-4)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_who_has_no_gradient_of_one_optimizer_is_not_waited_for(zero: int) -> None:
    """It tells what it has brought at the end of its backward, in which others wait for room, or for sums."""
    layers = [made(3, 2, seed=number) for number in range(2)]

    def loss(rank: int, step: int, of: list[nn.Sequential]) -> torch.Tensor:
        first, second = (layer(torch.ones(1, 3)).square().sum() for layer in of)
        return first + second if rank == step % 2 else second

    def work(world: World) -> list[torch.Tensor]:
        own = [made(3, 2, seed=number) for number in range(2)]
        both = [
            DistributedOptimizer(torch.optim.SGD(each.parameters(), lr=0.1), each, world, update="servers")
            for each in own
        ]
        for step in range(4):
            loss(world.rank, step, own).backward()
            for each in both:
                each.step()
        with both[0].gathered():
            return [p.detach().clone() for layer in own for p in layer.parameters()]

    plain = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1)
    for step in range(4):
        plain.zero_grad()
        (loss(0, step, layers) / 2 + loss(1, step, layers) / 2).backward()
        plain.step()
    for seen in on_workers(WORKERS, work, servers=1, exchange={"zero": zero}):
        torch.testing.assert_close(seen, [p.detach() for layer in layers for p in layer.parameters()])


class Two:
    """Two layers, each with an optimizer that servers carry out."""

    def __init__(self, world: World, layers: list[nn.Linear]) -> None:
        self.layers, self.world = layers, world
        self.first, self.second = (self.wrap(layer) for layer in layers)

    def wrap(self, layer: nn.Module, update: Any = "servers") -> DistributedOptimizer:
        return DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), layer, self.world, update=update)

    def train(self, *numbers: int) -> None:
        torch.stack([self.layers[number](torch.ones(1, 3)).sum() for number in numbers]).sum().backward()


def not_stepped(two: Two) -> None:
    """The judge's gradients come with the maker's, and are to be dropped: servers have updated by them."""
    two.train(0, 1)
    two.first.step()
    two.train(1)


def frozen_in_part(two: Two) -> None:
    two.layers[1].bias.requires_grad_(False)
    two.train(0)


def late(two: Two) -> None:
    two.train(0)
    two.first.step()
    two.wrap(nn.Linear(3, 2))


def other_rate(two: Two) -> None:
    two.train(0, 1)
    two.second.param_groups[0]["lr"] = 0.5
    two.first.step()
    two.second.step()


REFUSED: dict[str, tuple[Callable[[Two], object], type[TaihuError], str]] = {
    "not stepped": (not_stepped, RunError, r"before the step\(\) of the one before, .* weight again: .*no_sync\(\)"),
    "frozen in part": (frozen_in_part, ConfigError, "1 parameters need gradients, of 2 .* freeze layers before"),
    "late": (late, ConfigError, "make every DistributedOptimizer before it"),
    "another rate": (other_rate, ConfigError, "parameter group 0 was 0.1 when backward began, and is 0.5"),
    "shared": (lambda two: two.wrap(two.layers[0]), ConfigError, "bias belongs to another DistributedOptimizer"),
    "mixed": (lambda two: two.wrap(nn.Linear(3, 2), "workers"), ConfigError, "give each .* the same update"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_several_cannot_do_ends_the_script_with_one_line(what: str) -> None:
    act, kind, message = REFUSED[what]
    layers = [[nn.Linear(3, 2), nn.Linear(3, 2)] for _ in range(WORKERS)]
    with pytest.raises(kind, match=message) as caught:
        on_workers(WORKERS, lambda world: act(Two(world, layers[world.rank])), servers=1)
    assert "\n" not in str(caught.value)


def test_stage_3_says_that_it_knows_no_turns() -> None:
    layers = [[nn.Linear(3, 2), nn.Linear(3, 2)] for _ in range(WORKERS)]
    with pytest.raises(RunError, match=r"gradients of 1 of the script's 2 optimizers, .* exchange.zero = 2"):
        on_workers(WORKERS, lambda world: Two(world, layers[world.rank]).train(0), servers=1, exchange={"zero": 3})
