"""Loops whose optimizer servers carry out: three workers are one process of PyTorch with all their samples."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.torch_scripts import taihu_run
from support.torch_workers import on_workers
from torch import nn

from taihu.core.base.errors import RunError
from taihu.torch.gradients.gradients import layout_of, trained
from taihu.torch.gradients.rules import ScriptOptimizer
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.steps.modules import ModuleReads
from taihu.torch.world import World
from taihu.worker.exchange.base.route import Updated
from taihu.worker.exchange.executor import Executor
from taihu.worker.exchange.shell import Exchange

STEPS, MICRO, BATCH = 50, 2, 24

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

KINDS: dict[str, Make] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.8, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, betas=(0.8, 0.99), eps=1e-7),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
}


class Net(nn.Module):  # type: ignore[misc]
    """A frozen layer, one used twice, one never used, one that is read without a call, and one that is late."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Parameter(torch.randn(20))
        self.frozen = nn.Linear(20, 32)
        self.frozen.requires_grad_(False)
        self.shared = nn.Linear(32, 32)
        self.unused = nn.Linear(7, 7)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.frozen(x * self.late))
        x = torch.tanh(self.shared(torch.relu(self.shared(x))))
        x = x.unsqueeze(1)
        x = (x + self.attention(x, x, x, need_weights=False)[0]).squeeze(1)
        return self.head(x)


def model_of(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net()


def optimizer_of(model: Net, make: Make) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": [*model.shared.parameters(), *model.unused.parameters()], "lr": 0.004, "weight_decay": 0.02},
        {"params": [model.late, *model.attention.parameters(), *model.head.parameters()]},
    ]
    return make(groups)


def schedule_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    rest = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.5)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, rest], [5])


def data() -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(3)
    inputs = torch.randn(STEPS, MICRO, BATCH, 20, generator=drawn)
    return inputs, torch.randint(0, 5, (STEPS, MICRO, BATCH), generator=drawn)


def hash_of(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def losses_of(
    model: Net, optimizer: Any, share: slice, *, steps: int = STEPS, after: Callable[[], None] = lambda: None
) -> list[float]:
    """A loop as people write them, with gradients that are added up, and a scheduler that warms up."""
    scheduler = schedule_of(optimizer)
    inputs, labels = data()
    losses = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for micro in range(MICRO):
            adds_up = micro < MICRO - 1 and isinstance(optimizer, DistributedOptimizer)
            with optimizer.no_sync() if adds_up else nullcontext():
                loss = nn.functional.cross_entropy(model(inputs[step, micro, share]), labels[step, micro, share])
                (loss / MICRO).backward()
            losses.append(loss.item())
        optimizer.step()
        scheduler.step()
        after()
    return losses


def spread(make: Make, *, steps: int = STEPS, hashes_all: bool = False, **exchange: Any) -> tuple[Any, list[Any]]:
    """Mean losses, and for each rank the hashes of its parameters, behind all steps or the last one."""
    models = [model_of(7 + rank) for rank in range(3)]

    def work(world: World) -> tuple[list[float], list[str]]:
        model, hashes = models[world.rank], list[str]()
        optimizer = DistributedOptimizer(optimizer_of(model, make), model, world, update="servers")

        def keep_hash() -> None:
            with optimizer.gathered():
                hashes.append(hash_of(model))

        share = slice(world.rank * BATCH // 3, (world.rank + 1) * BATCH // 3)
        losses = losses_of(model, optimizer, share, steps=steps, after=keep_hash if hashes_all else lambda: None)
        keep_hash()
        # Steps were measured, and their plan holds, in an order that all workers have.
        assert optimizer._steps is not None
        assert optimizer._steps._opened is not None
        is_measured = steps == STEPS and exchange.get("zero") != 3
        assert not is_measured or optimizer._steps._opened.steps.exchange.plan.version > 1
        return losses, hashes

    seen = on_workers(3, work, servers=2, exchange=exchange)
    return np.mean([losses for losses, _ in seen], axis=0), [hashes for _, hashes in seen]


@pytest.mark.parametrize("kind", KINDS)
def test_three_workers_are_one_process_with_all_their_samples(kind: str) -> None:
    alone = model_of(7)
    expected = losses_of(alone, optimizer_of(alone, KINDS[kind]), slice(0, BATCH))
    losses, hashes = spread(KINDS[kind])
    assert len({each[-1] for each in hashes}) == 1
    np.testing.assert_allclose(losses, expected, rtol=5e-4)


def test_losses_of_stage_3_are_those_of_stage_1_to_the_bit() -> None:
    first, third = (spread(KINDS["adam"], zero=zero, bucket_bytes=4096) for zero in (1, 3))
    assert first[0].tobytes() == third[0].tobytes()
    assert first[1] == third[1]
    alone = model_of(7)
    expected = losses_of(alone, optimizer_of(alone, KINDS["adam"]), slice(0, BATCH))
    np.testing.assert_allclose(third[0], expected, rtol=5e-4)


def test_all_ranks_have_the_same_bits_behind_every_step_and_in_every_stage() -> None:
    seen = []
    for zero in (1, 2, 3):
        _, hashes = spread(KINDS["adam"], steps=12, hashes_all=True, zero=zero, plan="bucket:4kB", transport="tcp")
        for step, at_step in enumerate(zip(*hashes, strict=True)):
            assert len(set(at_step)) == 1, f"replicas differ after step {step} in stage {zero}"
        seen.append(hashes[0])
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen[0])) == 13 - 1


def test_a_module_waits_for_its_own_parameters_alone() -> None:
    """The first module of a forward computes while parameters of the second have not come."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    named = [*model.named_parameters()]
    layers = {id(p): layer for layer, (_, p) in enumerate(reversed(named))}
    came, events = threading.Event(), list[str]()

    def read(own: Any) -> None:
        if 0 in own:  # the bias of the last module
            assert came.wait(10)
        events.append(f"reads {list(own)}")

    def computed(*_: Any) -> None:
        events.append("the first has computed")
        came.set()

    ModuleReads(model, layers, read, lambda: None)
    model[0].register_forward_hook(computed)
    model(torch.zeros(1, 2))
    assert events == ["reads [3, 2]", "the first has computed", "reads [1, 0]"]


def test_forward_computes_with_what_is_there_while_the_rest_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of the second module are told of when the first has computed, and the second waits for them."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    events: list[str] = []
    has_computed = [threading.Event(), threading.Event()]
    watched: Exchange | None = None
    updated = Executor.updated

    def late(steps: Executor, part: Updated) -> None:
        exchange = watched
        if exchange is None or exchange.steps is not steps or part.group >= 2:
            updated(steps, part)  # of the first module: the layout begins with the last one
            return

        def tell() -> None:
            assert has_computed[0].wait(10)
            while not exchange.awaited and not has_computed[1].is_set():
                pass
            events.append("updates of the second have come")
            updated(steps, part)

        threading.Thread(target=tell).start()

    def computed(number: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            events.append(("the first", "the second")[number] + " has computed")
            has_computed[number].set()

        return note

    def work(world: World) -> None:
        if world.rank:
            other = copy.deepcopy(model)
            optimizer = DistributedOptimizer(torch.optim.SGD(other.parameters()), other, world, update="servers")
            for _ in range(2):
                other(torch.ones(1, 3)).sum().backward()
                optimizer.step()
            return
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters()), model, world, update="servers")
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.synchronize()
        assert optimizer._steps is not None
        assert optimizer._steps._opened is not None
        nonlocal watched
        watched = optimizer._steps._opened.steps.exchange
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        for number, module in enumerate(model):
            module.register_forward_hook(computed(number))
        model(torch.ones(1, 3))

    monkeypatch.setattr(Executor, "updated", late)
    on_workers(2, work, servers=1, exchange={"plan": "per-layer", "transport": "tcp"})
    first, *come, last = events
    assert (first, last) == ("the first has computed", "the second has computed")
    assert set(come) == {"updates of the second have come"}


def test_what_is_selected_of_gradients_moves_all_parameters_by_the_scripts_optimizer() -> None:
    """Beside it three loops in one process: each adds up what it has not sent of a layer, and sends the largest."""
    density, steps, start = 0.25, 12, nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def batch(rank: int, step: int) -> torch.Tensor:
        return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * rank + step))

    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=0.01)

    def work(world: World) -> list[torch.Tensor]:
        model = copy.deepcopy(start)
        optimizer = DistributedOptimizer(adam(model), model, world, update="servers")
        for step in range(steps):
            model(batch(world.rank, step)).square().mean().backward()
            optimizer.step()
        optimizer.synchronize()
        return [p.detach().clone() for p in model.parameters()]

    seen = on_workers(3, work, servers=2, compression={"method": "lags", "density": density})
    alone = copy.deepcopy(start)
    plain, held = adam(alone), [[torch.zeros(p.numel()) for p in alone.parameters()] for _ in range(3)]
    for step in range(steps):
        sent = [torch.zeros_like(p) for p in alone.parameters()]
        for rank in range(3):
            own = torch.autograd.grad(alone(batch(rank, step)).square().mean(), [*alone.parameters()])
            for left, gradient, total in zip(held[rank], own, sent, strict=True):
                left.add_(gradient.reshape(-1))
                chosen = left.abs().topk(-(-left.numel() // 4)).indices
                total.view(-1)[chosen] += left[chosen]
                left[chosen] = 0.0
        for parameter, total in zip(alone.parameters(), sent, strict=True):
            parameter.grad = total / 3
        plain.step()
    for parameters in seen:
        assert all(map(torch.equal, parameters, seen[0]))
        torch.testing.assert_close(parameters, [p.detach() for p in alone.parameters()], rtol=1e-4, atol=1e-5)


def test_the_state_of_a_model_is_that_of_the_last_step() -> None:
    def work(world: World) -> bool:
        model = models[world.rank]
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world, update="servers")
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer.synchronize()
        return all(torch.equal(state[name], value) for name, value in model.named_parameters())

    torch.manual_seed(2)
    models = [nn.Linear(4, 50_000) for _ in range(2)]
    before = models[0].weight.detach().clone()
    assert all(on_workers(2, work, servers=1))
    torch.testing.assert_close(models[1].weight.detach(), before - 0.1)


def test_rules_are_those_of_the_script() -> None:
    model = model_of(1)
    optimizer = optimizer_of(model, KINDS["adam"])
    named = trained(optimizer, model)
    script = ScriptOptimizer(optimizer, [p for _, p in reversed(named)])
    (rule,) = script.rules.optimizers
    assert (rule.name.key, rule.beta1, rule.beta2) == ("adam", 0.8, 0.99)
    assert script.rules.weight_decays == (0.02, 0.0)
    assert script.rates() == (0.004, 0.01)
    names = [layer.name for layer in layout_of(named).layers]
    in_first = {name for name, group in zip(names, script.rules.parameter_groups, strict=True) if group == 0}
    assert in_first == {"shared.weight", "shared.bias", "unused.weight", "unused.bias"}


def test_the_last_step_is_told_of_where_the_script_ends_behind_it(tmp_path: Path) -> None:
    def work(world: World) -> None:
        model = models[world.rank]
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world, update="servers")
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    models = [nn.Linear(4, 3) for _ in range(2)]
    on_workers(2, work, servers=1, run={"dir": tmp_path / "kept"})
    assert json.loads((tmp_path / "kept" / "results.json").read_text())["total_steps"] == 3


def test_workers_with_fewer_batches_go_by_the_rates_of_the_others() -> None:
    torch.manual_seed(0)
    models = [nn.Linear(6, 3) for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    alone = nn.Linear(6, 3)
    alone.load_state_dict(models[0].state_dict())

    def batch(rank: int, step: int) -> torch.Tensor:
        return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * rank + step))

    def work(world: World) -> None:
        model = models[world.rank]
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = DistributedOptimizer(inner, model, world, update="servers")
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        with optimizer.join():
            for step in range(3 + 2 * world.rank):
                optimizer.zero_grad()
                model(batch(world.rank, step)).square().mean().backward()
                optimizer.step()
                scheduler.step()
        optimizer.synchronize()

    on_workers(3, work, servers=2)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(plain, 0.8)
    for step in range(3 + 2 * 2):
        plain.zero_grad()
        for rank in range(3):
            if step < 3 + 2 * rank:
                (alone(batch(rank, step)).square().mean() / 3).backward()
        plain.step()
        scheduler.step()
    for model in models:
        torch.testing.assert_close([*model.parameters()], [*alone.parameters()], rtol=1e-5, atol=1e-6)


def copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("made", [copied, saved])
@pytest.mark.parametrize("zero", [1, 3])
def test_a_copy_of_a_model_is_the_users_and_that_of_the_last_step(
    made: Callable[[nn.Module], nn.Module], zero: int
) -> None:
    def work(world: World) -> bool:
        model = models[world.rank]
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world, update="servers")
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        with optimizer.gathered() if zero == 3 else nullcontext():
            whole, part = made(model), made(model[1])
        for other in (*whole.modules(), part):
            assert "taihu" not in repr(vars(other))
            other.load_state_dict(other.state_dict())
        part(torch.ones(1, 50_000)).sum().backward()
        with optimizer.gathered():
            expected = [*model.parameters(), *model[1].parameters()]
            return all(map(torch.equal, [*whole.parameters(), *part.parameters()], expected))

    torch.manual_seed(2)
    models = [nn.Sequential(nn.Linear(4, 50_000), nn.Linear(50_000, 2)) for _ in range(2)]
    assert all(on_workers(2, work, servers=1, exchange={"zero": zero}))


def test_a_parameter_that_is_away_is_not_copied() -> None:
    def work(world: World) -> None:
        model = models[world.rank]
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world, update="servers")
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        for made in (copied, saved):
            with pytest.raises(RunError, match=r"parameter 0\.weight is not here.* optimizer\.gathered\(\)"):
                made(model)

    models = [nn.Sequential(nn.Linear(4, 3)) for _ in range(2)]
    on_workers(2, work, servers=1, exchange={"zero": 3})


def test_a_model_that_is_compiled_as_one_graph_reads_the_parameters_of_the_last_step(tmp_path: Path) -> None:
    """From its first step on, or when its modules have been called before."""
    told = set()
    for first in (0, 4, 99):
        done = taihu_run(tmp_path, "--servers", "1", script="compiled.py", arguments=(str(first),), workers=2)
        assert done.returncode == 0, done.stderr
        told.add(done.stdout)
    assert len(told) == 1, told


def test_compiled_code_cannot_have_parameters_that_do_not_stay(tmp_path: Path) -> None:
    flags = ("--servers", "1", "--set", "exchange.zero=3")
    done = taihu_run(tmp_path, *flags, script="compiled.py", arguments=("0",), workers=2)
    assert done.returncode != 0
    assert "exchange.zero = 3: torch.compile cannot" in done.stderr.splitlines()[-1]
