"""Scripts with several optimizers beside one process with all samples: of parts of a model, of models in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from support.torch_workers import on_workers
from torch import nn

from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.steps.reports import Reports
from taihu.torch.world import World
from taihu.worker.exchange.executor import Executor
from taihu.worker.exchange.ground import Waits
from taihu.worker.exchange.shell import Exchange
from taihu.worker.training.step_record import StepRecord

STEPS, BATCH, WORKERS = 9, 12, 3
RINGS: dict[str, dict[str, Any]] = {"ring": {}, "ring of one group": {"exchange": {"plan": "single"}}}
SERVERS: dict[str, dict[str, Any]] = {
    "servers": {"servers": 2},
    "servers of small buckets": {"servers": 2, "exchange": {"plan": "bucket:200B", "transport": "grpc"}},
}
EVERYTHING: dict[str, Any] = {"compression": {"method": "lags", "density": 1.0}}
COMPRESSED: dict[str, dict[str, Any]] = {
    "ring, compressed": EVERYTHING,
    "servers, compressed": {**EVERYTHING, "servers": 2},
}
WAYS = {**RINGS, **SERVERS, **COMPRESSED}
Wrap = Callable[[torch.optim.Optimizer, nn.Module | None], Any]
Seen = tuple[list[float], list[torch.Tensor]]


def made(module: nn.Module, seed: int) -> nn.Module:
    # Workers are threads: the generator that layers draw from belongs to all of them.
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.4, 0.4, generator=drawn)
    return module


def made_model(seed: int) -> nn.Sequential:
    layers = [nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3)]
    return made(nn.Sequential(*layers), seed)


def batch(step: int, share: slice) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(70 + step)
    inputs, labels = torch.randn(BATCH, 6, generator=drawn), torch.randn(BATCH, 3, generator=drawn)
    return inputs[share], labels[share]


def share_of(world: World) -> slice:
    return slice(world.rank * BATCH // world.size, (world.rank + 1) * BATCH // world.size)


def plain(optimizer: torch.optim.Optimizer, _: nn.Module | None) -> Any:
    return optimizer


def values_of(*models: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for model in models for parameter in model.parameters()]


def weights_and_biases(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters that alternate in the order of backward."""
    named = list(model.named_parameters())
    return [p for name, p in named if name.endswith("weight")], [p for name, p in named if name.endswith("bias")]


def two_rules(model: nn.Module, wrap: Wrap) -> tuple[Any, Any]:
    weights, biases = weights_and_biases(model)
    return wrap(torch.optim.AdamW(weights, lr=0.01), model), wrap(
        torch.optim.SGD(biases, lr=0.1, momentum=0.9), model
    )


def train_parts(model: nn.Module, wrap: Wrap, share: slice) -> Seen:
    """A model with one optimizer for weights and one for biases, clipped together, added up in each third step."""
    first, second = two_rules(model, wrap)
    losses = []
    for step in range(STEPS):
        first.zero_grad()
        second.zero_grad()
        if step % 3 == 2:
            with ExitStack() as adding:
                if isinstance(first, DistributedOptimizer):
                    adding.enter_context(first.no_sync())
                    adding.enter_context(second.no_sync())
                inputs, labels = batch(90 + step, share)
                nn.functional.mse_loss(model(inputs), labels).backward()
        inputs, labels = batch(step, share)
        loss = nn.functional.mse_loss(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        first.step()
        second.step()
        losses.append(loss.item())
    return losses, values_of(model)


def exchange_of(optimizer: Any) -> Exchange:
    assert isinstance(optimizer, DistributedOptimizer)
    assert optimizer._steps is not None
    assert optimizer._steps._opened is not None
    return optimizer._steps._opened.steps.exchange


def wrapping(world: World) -> Wrap:
    return lambda own, model: DistributedOptimizer(own, model, world)


def compare(seen: Sequence[Seen], expected: Seen) -> None:
    losses, parameters = expected
    np.testing.assert_allclose(np.mean([losses for losses, _ in seen], axis=0), losses, rtol=1e-4)
    for _, own in seen:
        assert all(map(torch.equal, own, seen[0][1]))
        torch.testing.assert_close(own, parameters, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_optimizers_of_parts_of_a_model_step_behind_one_backward(way: str) -> None:
    def work(world: World) -> Seen:
        model = made_model(world.rank)
        return train_parts(model, wrapping(world), share_of(world))

    expected = train_parts(made_model(0), plain, slice(0, BATCH))
    compare(on_workers(WORKERS, work, **WAYS[way]), expected)


class Pair:
    """A generator and a discriminator, each with an optimizer, whose names of parameters are the same."""

    def __init__(self, wrap: Wrap, seed: int) -> None:
        self.made = made(nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6)), seed)
        self.judge = made(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1)), seed + 1)
        self.maker = wrap(torch.optim.Adam(self.made.parameters(), lr=0.02, betas=(0.5, 0.9)), self.made)
        self.judging = wrap(torch.optim.SGD(self.judge.parameters(), lr=0.1, momentum=0.9), self.judge)

    def scored(self, inputs: torch.Tensor, label: float) -> torch.Tensor:
        scores = self.judge(inputs)
        return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))

    def values(self) -> list[torch.Tensor]:
        return values_of(self.made, self.judge)


def drawn_noise(step: int, share: slice) -> torch.Tensor:
    return torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(step))[share]


def gan(pair: Pair, step: int, share: slice) -> Iterator[torch.Tensor]:
    """The loop of PyTorch's tutorial: two backwards of the judge, and one of both, where it drops its gradients."""
    inputs, _ = batch(step, share)
    pair.judge.zero_grad()
    real = pair.scored(inputs, 1.0)
    real.backward()
    fake = pair.made(drawn_noise(step, share))
    wrong = pair.scored(fake.detach(), 0.0)
    wrong.backward()
    pair.judging.step()
    pair.made.zero_grad()
    fooled = pair.scored(fake, 1.0)
    fooled.backward()
    pair.maker.step()
    yield from (real, wrong, fooled)


def gan_with_a_frozen_judge(pair: Pair, step: int, share: slice) -> Iterator[torch.Tensor]:
    """No backward brings gradients of both, and the judge takes more steps than the generator."""
    inputs, _ = batch(step, share)
    fake = pair.made(drawn_noise(step, share))
    pair.judging.zero_grad()
    judged = pair.scored(inputs, 1.0) + pair.scored(fake.detach(), 0.0)
    judged.backward()
    pair.judging.step()
    yield judged
    if step % 3 != 1:
        pair.judge.requires_grad_(False)
        pair.maker.zero_grad()
        fooled = pair.scored(fake, 1.0)
        fooled.backward()
        pair.maker.step()
        pair.judge.requires_grad_(True)
        yield fooled


LOOPS = {"gan": gan, "frozen": gan_with_a_frozen_judge}


def train_pair(loop: str, wrap: Wrap, share: slice, seed: int) -> Seen:
    pair = Pair(wrap, seed)
    losses = [loss.item() for step in range(STEPS) for loss in LOOPS[loop](pair, step, share)]
    return losses, pair.values()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_models_that_train_in_turns_are_those_of_one_process(way: str, loop: str) -> None:
    def work(world: World) -> Seen:
        return train_pair(loop, wrapping(world), share_of(world), world.rank)

    compare(on_workers(WORKERS, work, **WAYS[way]), train_pair(loop, plain, slice(0, BATCH), 0))


def test_groups_go_while_their_backward_is_under_way_and_no_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second round on it is known which backward comes next; groups have parameters of one model."""
    told: dict[int, list[str]] = {}
    push, stepped = Executor.push, Reports.stepped
    elements: dict[int, list[list[int]]] = {}

    def note(reports: Reports, record: StepRecord) -> None:
        assert record.sample().exchange_seconds <= record.end_s - record.start_s
        elements.setdefault(id(reports), []).append([times.elements for times in record.times])
        stepped(reports, record)

    monkeypatch.setattr(Reports, "stepped", note)

    def pushed(steps: Executor, group: int) -> Waits:
        if (events := told.get(id(steps))) is not None:
            events.append(f"push {group}")
        return push(steps, group)

    monkeypatch.setattr(Executor, "push", pushed)

    def work(world: World) -> tuple[list[str], list[int]]:
        pair = Pair(wrapping(world), 0)
        events: list[str] = []
        for owner, model in (("made", pair.made), ("judge", pair.judge)):
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda _, owner=owner: events.append(owner))
        for step in range(8):
            events.clear()
            list(gan(pair, step, share_of(world)))
            exchange = exchange_of(pair.maker)
            told[id(exchange.steps)] = events
        assert exchange.plan.predicted_seconds > 0
        return events, [times.bytes_up for times in exchange.group_times()]

    judge, made = [*["judge"] * 3, "push 0", "judge"], [*["made"] * 3, "push 1", "made"]
    for seen, sent in on_workers(2, work, exchange={"calibration_steps": 4, "plan": "bucket:1MB"}):
        assert seen == [*judge, *judge, *judge, *made]
        assert all(sent)
    judges, mades = (
        sum(map(torch.numel, model.parameters())) for model in (Pair(plain, 0).judge, Pair(plain, 0).made)
    )
    assert len(elements) == 2
    for told_of in elements.values():
        assert told_of == [[judges], [judges], [judges, mades]] * 8


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize("shares", [False, True], ids=["two models", "one model"])
def test_what_is_held_back_of_one_optimizer_waits_for_its_turn(servers: int, shares: bool) -> None:
    """Neither it nor the gradients of the other model change in a backward that brings none of them."""
    layers = sum(parameter.numel() for parameter in Pair(plain, 0).judge.parameters())

    def work(world: World) -> Seen:
        pair = Pair(plain if shares else wrapping(world), 0)
        if shares:
            both = nn.ModuleList([pair.made, pair.judge])
            pair.maker, pair.judging = (wrapping(world)(own, both) for own in (pair.maker, pair.judging))
        for step in range(4):
            list(gan_with_a_frozen_judge(pair, step, share_of(world)))
        before = pair.maker.state_dict()["taihu.residual"].clone()
        gradients = [parameter.grad.clone() for parameter in pair.made.parameters()]
        assert all(gradient.any() for gradient in gradients)
        assert before[layers:].any()
        pair.judging.zero_grad()
        pair.scored(batch(9, share_of(world))[0], 1.0).backward()
        after = pair.maker.state_dict()["taihu.residual"]
        assert torch.equal(before[layers:], after[layers:])
        assert not torch.equal(before[:layers], after[:layers])
        assert all(map(torch.equal, gradients, [parameter.grad for parameter in pair.made.parameters()]))
        pair.judging.step()
        return [], pair.values()

    lags = {"method": "lags", "density": 0.2}
    seen = on_workers(2, work, servers=servers, compression=lags, exchange={"plan": "single"})
    assert all(map(torch.equal, seen[0][1], seen[1][1]))


def test_a_state_of_compression_is_that_of_all_optimizers_and_lies_with_the_first() -> None:
    compression = {"method": "dlgs", "density": 0.2}

    def first_half(world: World) -> list[Any]:
        pair = Pair(wrapping(world), 0)
        for step in range(3):
            list(gan(pair, step, share_of(world)))
        return [each.state_dict() for each in (pair.made, pair.judge, pair.maker, pair.judging)]

    def whole(world: World) -> list[torch.Tensor]:
        pair = Pair(wrapping(world), 0)
        for step in range(6):
            list(gan(pair, step, share_of(world)))
        return pair.values()

    saved = on_workers(2, first_half, compression=compression)

    def second_half(world: World) -> list[torch.Tensor]:
        pair = Pair(wrapping(world), 5)
        for each, state in zip((pair.made, pair.judge, pair.maker, pair.judging), saved[world.rank], strict=True):
            each.load_state_dict(state)
        for step in range(3, 6):
            list(gan(pair, step, share_of(world)))
        return pair.values()

    assert "taihu.residual" in saved[0][2]
    assert "taihu.residual" not in saved[0][3]
    (expected, *_), (seen, *_) = (on_workers(2, work, compression=compression) for work in (whole, second_half))
    torch.testing.assert_close(seen, expected)
