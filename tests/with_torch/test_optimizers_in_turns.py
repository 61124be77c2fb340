"""Backwards that bring gradients of some optimizers alone, whichever they are, and what several are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.torch_workers import on_workers
from torch import nn

from taihu.core.base.errors import RunError, TaihuError
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.steps.turns import Turns
from taihu.torch.world import World

SETS = st.frozensets(st.integers(0, 2), min_size=1)


def made_layers(count: int) -> list[nn.Linear]:
    # Workers are threads: the generator that layers draw from belongs to all of them.
    drawn = torch.Generator().manual_seed(3)
    layers = [nn.Linear(3, 2) for _ in range(count)]
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.parameters():
                parameter.uniform_(-0.4, 0.4, generator=drawn)
    # Gradients of other types are not views of the arena.
    return [layer.double() if number == 2 else layer for number, layer in enumerate(layers)]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def gradients_of(layers: list[nn.Linear]) -> list[torch.Tensor]:
    """Copies; one without values for each that is not there."""
    gradients = [parameter.grad for layer in layers for parameter in layer.parameters()]
    return [torch.empty(0) if gradient is None else gradient.clone() for gradient in gradients]


def loss_of(layers: list[nn.Linear], chosen: list[int], rank: int, step: int) -> torch.Tensor:
    """Of the layers that worker `rank` has chosen, in the order in which it did."""
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + rank))
    outputs = [layers[number](inputs.to(layers[number].weight.dtype)) for number in chosen]
    return torch.stack([output.square().mean().float() for output in outputs]).sum()


def chosen_by(rank: int, step: int, count: int) -> list[int]:
    drawn = random.Random(1000 * step + rank)
    return drawn.sample(range(count), drawn.randint(1, count))


CHOSEN: dict[str, dict[str, Any]] = {
    "ring": {},
    "servers": {"servers": 2, "exchange": {"transport": "grpc", "window_frames": 1}},
    "servers, lags": {"servers": 2, "compression": {"method": "lags", "density": 1.0}},
}


@pytest.mark.parametrize("way", CHOSEN)
def test_workers_may_bring_gradients_of_other_optimizers_in_any_order(way: str) -> None:
    """Gradients that one of them has are means of all; those that none of them has stay as they were."""
    count, steps, workers = 4, 30, 3

    def work(world: World) -> list[list[torch.Tensor]]:
        layers = made_layers(count)
        for number, layer in enumerate(layers):
            DistributedOptimizer(sgd(layer), layer if number % 2 else None, world)
        seen = []
        for step in range(steps):
            for number in chosen_by(99, step, count):
                layers[number].zero_grad()
            loss_of(layers, chosen_by(world.rank, step, count), world.rank, step).backward()
            seen.append(gradients_of(layers))
        return seen

    expected = []
    layers = made_layers(count)
    for step in range(steps):
        for number in chosen_by(99, step, count):
            layers[number].zero_grad()
        for rank in range(workers):
            (loss_of(layers, chosen_by(rank, step, count), rank, step) / workers).backward()
        expected.append(gradients_of(layers))
    assert any(not len(gradient) for gradients in expected for gradient in gradients)
    for seen in on_workers(workers, work, **CHOSEN[way]):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)


def test_one_optimizer_may_add_up_while_another_one_exchanges() -> None:
    def work(world: World) -> list[torch.Tensor]:
        layers = made_layers(2)
        first, second = (DistributedOptimizer(sgd(layer), layer, world) for layer in layers)
        with first.no_sync(), second.no_sync():
            loss_of(layers, [0], world.rank, 0).backward()
        with first.no_sync():
            loss_of(layers, [0, 1], world.rank, 1).backward()
        own = gradients_of(layers[:1])
        plain = made_layers(2)
        for step, chosen in enumerate(([0], [0, 1])):
            loss_of(plain, chosen, world.rank, step).backward()
        torch.testing.assert_close(own, gradients_of(plain[:1]))
        loss_of(layers, [0], world.rank, 2).backward()
        return gradients_of(layers)

    layers = made_layers(2)
    for rank in range(2):
        for step, chosen in enumerate(([0], [0, 1], [0])):
            (loss_of(layers, chosen, rank, step) / 2).backward()
    for seen in on_workers(2, work):
        torch.testing.assert_close(seen, gradients_of(layers))


def scaled(layers: list[nn.Linear], optimizers: list[Any], losses: Callable[[int], torch.Tensor]) -> list[Any]:
    """The scale and the parameters behind each of six steps."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    seen = []
    for step in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(losses(step)).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), [p.detach().clone() for layer in layers for p in layer.parameters()]))
    return seen


def test_one_scaler_skips_the_optimizer_whose_gradients_are_infinite_on_one_worker() -> None:
    def loss(layers: list[nn.Linear], rank: int, step: int) -> torch.Tensor:
        factor = float("inf") if (rank, step) == (1, 2) else 1.0
        return loss_of(layers, [0], rank, step) + factor * loss_of(layers, [1], rank, step)

    def work(world: World) -> list[Any]:
        layers = made_layers(2)
        optimizers = [DistributedOptimizer(sgd(layer), layer, world) for layer in layers]
        return scaled(layers, optimizers, lambda step: loss(layers, world.rank, step))

    layers = made_layers(2)
    alone = scaled(
        layers, [sgd(layer) for layer in layers], lambda step: (loss(layers, 0, step) + loss(layers, 1, step)) / 2
    )
    for seen in on_workers(2, work):
        torch.testing.assert_close(seen, alone)
        before, after = seen[1][1], seen[2][1]
        assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [False, False, True, True]
        assert [scale for scale, _ in seen] == [64.0, 64.0, 32.0, 32.0, 32.0, 64.0]


def refused(use: Callable[[World, list[nn.Linear]], None], **tables: Any) -> None:
    on_workers(2, lambda world: use(world, made_layers(2)), **tables)


def test_an_optimizer_that_comes_behind_the_first_backward_is_exchanged_from_the_next_one_on() -> None:
    def use(world: World) -> list[torch.Tensor]:
        layers = made_layers(2)
        DistributedOptimizer(sgd(layers[0]), layers[0], world)
        loss_of(layers, [0], world.rank, 0).backward()
        DistributedOptimizer(sgd(layers[1]), layers[1], world)
        loss_of(layers, [1], world.rank, 1).backward()
        return gradients_of(layers)

    layers = made_layers(2)
    for rank in range(2):
        (loss_of(layers, [0], rank, 0) / 2).backward()
        (loss_of(layers, [1], rank, 1) / 2).backward()
    for seen in on_workers(2, use):
        torch.testing.assert_close(seen, gradients_of(layers), rtol=1e-4, atol=1e-6)


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    def use(world: World, layers: list[nn.Linear]) -> None:
        model = nn.ModuleList(layers)
        first = DistributedOptimizer(sgd(layers[0]), layers[0], world)
        DistributedOptimizer(sgd(model), model, world)
        first.step()

    with pytest.raises(RunError, match=r"as 0\.weight: step by that one, or give each parameter to one of them"):
        refused(use)


def test_workers_with_other_numbers_of_optimizers_are_told_so() -> None:
    def use(world: World, layers: list[nn.Linear]) -> None:
        model = nn.ModuleList(layers)
        for each in (model,) if world.rank else layers:
            DistributedOptimizer(sgd(each), each, world)
        loss_of(layers, [0, 1], world.rank, 0).backward()

    with pytest.raises(
        TaihuError, match=r'worker 0: update="workers" 2 tensors of .* values; worker 1: update="workers" 4 tensors'
    ):
        refused(use)


@given(st.lists(SETS, min_size=1, max_size=6), st.integers(3, 6))
def test_a_loop_whose_pairs_of_backwards_tell_the_next_is_foreseen_from_its_second_round_on(
    loop: list[frozenset[int]], rounds: int
) -> None:
    pairs = list(zip(loop[-2:] + loop, [*loop[-1:], *loop], loop, strict=False))
    turns = Turns(3)
    is_told = len({(before, last) for before, last, _ in pairs[: len(loop)]}) == len(loop)
    for turn in range(rounds):
        for brought in loop:
            turns.begin()
            assert turn < 2 or not is_told or turns.expected == brought
            counted, was_whole = turns.counted, turns.expected == brought == {0, 1, 2}
            assert turns.expects_all == (turns.expected == {0, 1, 2})
            turns.agreed(brought)
            assert turns.counts == was_whole
            assert turns.counted == counted + was_whole


def test_of_one_optimizer_every_backward_counts() -> None:
    turns = Turns(1)
    for step in range(1, 5):
        turns.begin()
        assert turns.expects_all
        turns.agreed(frozenset({0}))
        assert turns.counts
        assert turns.counted == step
