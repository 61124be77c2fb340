"""Stage 3 of ZeRO in loops whose optimizer servers carry out: parameters are here while their modules use them."""

from __future__ import annotations

import copy
import mmap
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from support.torch_workers import on_workers
from torch import nn
from torch.utils.checkpoint import checkpoint

from taihu.core.base.errors import RunError
from taihu.core.coordination.plans.planning import Planning
from taihu.core.planner.groups import Group
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World
from taihu.worker.exchange.values import ArenaValues

WIDTH = 16
# Each parameter is a group of its own, and no more than two of them are here beside those that are used.
STAGE_3 = {"zero": 3, "transport": "tcp", "plan": "per-layer", "bucket_bytes": 4096}


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are given back are lost at once, where small groups would leave them in pages that they share."""

    def drop(memory: ArenaValues, group: int) -> None:
        memory._arenas.parameters[slice(*memory._bounds[group])] = np.nan

    def drop_all(memory: ArenaValues) -> None:
        memory._arenas.parameters[:] = np.nan

    monkeypatch.setattr(ArenaValues, "drop", drop)
    monkeypatch.setattr(ArenaValues, "drop_all", drop_all)


class Scaled(nn.Module):  # type: ignore[misc]
    """Two parameters that are two groups, and are read before and after a module within."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after * torch.tanh(self.inner(x * self.before)) + self.before


class Scorer(nn.Module):  # type: ignore[misc]
    """A custom function that reads two parameters in its backward, between which it calls for another backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Nested.apply(x, self.first, self.second)


class Nested(torch.autograd.Function):  # type: ignore[misc]
    """tanh(x first) second, of which backward is a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, first, second)
        return torch.tanh(x @ first) * second

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        saved = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            y = torch.tanh(saved[0] @ saved[1]) * saved[2]
        gradients: tuple[torch.Tensor, ...] = torch.autograd.grad(y, saved, *grads)
        return gradients


class Parts(nn.Module):  # type: ignore[misc]
    """All that may be difficult: shared and frozen modules, an in-place activation, one that is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.scaled = Scaled()
        self.again = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), Scaled())
        self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.scorer = Scorer()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shared(torch.relu(self.shared(self.frozen(x))))
        x = checkpoint(self.again, self.scaled(x), use_reentrant=False)
        with torch.autograd.graph.save_on_cpu():
            x = self.norm(x)
        x = self.scorer(x).unsqueeze(1)
        return self.attention(x, x, x, need_weights=False)[0].squeeze(1)


def models_of(make: Callable[[], nn.Module], count: int) -> list[nn.Module]:
    torch.manual_seed(5)
    first = make()
    return [first, *(copy.deepcopy(first) for _ in range(count - 1))]


def batch_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))


def served(model: nn.Module, world: World) -> DistributedOptimizer:
    inner = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    return DistributedOptimizer(inner, model, world, update="servers")


def losses_of(
    model: nn.Module, optimizer: Any, ranks: Sequence[int], *, steps: int = 6, micro: int = 2
) -> list[list[float]]:
    """Of each rank and batch; gradients of `micro` batches are added up here."""
    losses: list[list[float]] = [[] for _ in ranks]
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(micro):
            adds_up = part < micro - 1 and isinstance(optimizer, DistributedOptimizer)
            with optimizer.no_sync() if adds_up else nullcontext():
                for rank, own in zip(ranks, losses, strict=True):
                    loss = model(batch_of(rank, micro * step + part)).square().mean()
                    (loss / len(ranks)).backward()
                    own.append(loss.item())
        optimizer.step()
    return losses


@pytest.mark.usefixtures("lost")
def test_all_kinds_of_modules_train_as_in_one_process_and_to_the_bit_as_in_stage_1() -> None:
    def work(world: World) -> tuple[list[float], Mapping[str, torch.Tensor]]:
        model = models[world.rank]
        (losses,) = losses_of(model, served(model, world), [world.rank])
        return losses, model.state_dict()

    seen = []
    for zero in (1, 3):
        models = models_of(Parts, 2)
        seen.append(on_workers(2, work, servers=2, exchange={**STAGE_3, "zero": zero}))
    for (losses, state), (same_losses, same_state) in zip(*seen, strict=True):
        assert losses == same_losses
        assert all(torch.equal(state[name], same_state[name]) for name in state)
    (alone,) = models_of(Parts, 1)
    plain = torch.optim.SGD([p for p in alone.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    expected = losses_of(alone, plain, [0, 1])
    np.testing.assert_allclose([losses for losses, _ in seen[1]], expected, rtol=1e-4)


@pytest.mark.usefixtures("lost")
def test_groups_of_another_plan_come_for_modules_that_are_being_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward waits for the step before, behind which all go on by another plan."""

    def decide(planning: Planning, step: int, _: Any) -> None:
        layers = len(planning.plan.layout.layers)
        groups = (Group(0, 1), *(Group(layer, layer) for layer in range(2, layers)))
        planning._change(step, carriage=planning.plan.carriage, groups=groups)

    def work(world: World) -> tuple[list[float], int]:
        model = models[world.rank]
        optimizer = served(model, world)
        model[1].inner.register_forward_pre_hook(lambda *_: optimizer.synchronize())
        (losses,) = losses_of(model, optimizer, [world.rank], micro=1)
        assert optimizer._steps is not None
        assert optimizer._steps._opened is not None
        return losses, optimizer._steps._opened.steps.exchange.plan.version

    monkeypatch.setattr(Planning, "_decide", decide)
    seen = []
    for zero in (1, 3):
        models = models_of(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Scaled()), 2)
        exchange = {**STAGE_3, "zero": zero, "calibration_steps": 4}
        seen.append(on_workers(2, work, servers=1, exchange=exchange))
    assert seen[0] == seen[1]
    assert [version for _, version in seen[1]] == [2, 2]


def resident_bytes(values: Any) -> int:
    """Bytes of an array's pages that are in memory."""
    first, count = values.ctypes.data // mmap.PAGESIZE, -(-values.nbytes // mmap.PAGESIZE)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * count), dtype=np.uint64)
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE


def test_a_worker_has_memory_for_two_groups_where_stage_2_has_it_for_all() -> None:
    """Eight layers of 4 MiB; looked at behind every forward, and whenever a gradient is there."""
    width, layers = 1024, 8

    def work(world: World) -> int:
        model, most = models[world.rank], 0
        optimizer = served(model, world)

        def look(*_: Any) -> None:
            nonlocal most
            assert optimizer._steps is not None
            if optimizer._steps._opened is not None:
                most = max(most, resident_bytes(optimizer._steps._opened.steps.exchange._arenas.parameters))

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(look)
        for module in model:
            module.register_forward_hook(look)
        for step in range(3):
            model(torch.randn(2, width, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            model(torch.ones(1, width))
        return most

    peaks = []
    for zero in (2, 3):
        models = models_of(lambda: nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))), 2)
        peaks.append(on_workers(2, work, servers=1, exchange={**STAGE_3, "zero": zero}))
        structlog.get_logger().info("peaks", stage=zero, mib=[peak / (1 << 20) for peak in peaks[-1]])
    group, huge_page = width * width * 4, 1 << 21
    assert min(peaks[0]) >= layers * group
    # A huge page at either end comes whole.
    assert max(peaks[1]) <= 2 * group + 2 * huge_page


@pytest.mark.usefixtures("lost")
def test_whole_parameters_are_in_states_and_in_a_block_and_nowhere_else() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Scaled(), nn.Linear(WIDTH, 2))

    def work(world: World) -> None:
        model = models[world.rank]
        optimizer = served(model, world)
        for step in range(2):
            model(batch_of(world.rank, step)).square().mean().backward()
            optimizer.step()
        state = model.state_dict()
        with optimizer.gathered():
            whole = {name: p.detach().clone() for name, p in model.named_parameters()}
        assert all(p.any() for p in whole.values())
        model(batch_of(0, 7)).sum().backward()
        optimizer.step()
        assert [name for name, value in whole.items() if not torch.equal(state[name], value)] == []
        assert all(p.isfinite().all() for p in state.values())
        with torch.no_grad():
            seen = model(batch_of(0, 1))
        plain = make()
        plain.load_state_dict(model.state_dict())
        assert not torch.equal(plain[0].weight, whole["0.weight"])
        assert torch.equal(seen, plain(batch_of(0, 1)))
        weight = model[0].weight
        assert (weight.shape, weight.dtype, len(weight)) == ((WIDTH, WIDTH), torch.float32, WIDTH)
        assert repr(weight) == f"<parameter 0.weight of shape ({WIDTH}, {WIDTH}), which is away>"
        with pytest.raises(RunError, match=r"parameter 0\.weight is not here"):
            weight.sum()

    models = models_of(make, 2)
    on_workers(2, work, servers=1, exchange=STAGE_3)


def test_hooks_of_the_script_get_what_is_saved_of_other_values() -> None:
    """As those of checkpoints are, which would keep what they are there to give back."""

    def work(world: World) -> list[tuple[int, ...]]:
        model, shapes = models[world.rank], list[tuple[int, ...]]()
        optimizer = served(model, world)
        ones(model, optimizer)
        optimizer.step()

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(tensor.shape))
            return tensor.detach()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(batch_of(0, 0)).sum()
        loss.backward()
        return shapes

    models = models_of(linear, 2)
    # The inputs of both layers.
    assert on_workers(2, work, servers=1, exchange=STAGE_3) == [[(4, WIDTH)] * 2] * 2


class Tied(nn.Module):  # type: ignore[misc]
    """The embedding's parameter is read behind its module's forward; by another name as `way` says."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.embedding, self.way = nn.Linear(WIDTH, WIDTH, bias=False), way
        self.between = nn.Linear(WIDTH, WIDTH)
        self.embedding.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, *_: Any) -> None:
        self.kept = module.weight.T

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.between(self.embedding(x))
        if self.way == "itself":
            return nn.functional.linear(x, self.embedding.weight)
        return x @ self.kept


def behind_a_step(model: nn.Module, optimizer: DistributedOptimizer) -> None:
    loss = model(batch_of(0, 0)).sum()
    model(batch_of(0, 1)).sum().backward()
    optimizer.step()
    loss.backward()


def in_a_block(model: nn.Module, optimizer: DistributedOptimizer) -> None:
    with optimizer.gathered():
        model(batch_of(0, 0)).sum().backward()


def written_in_a_block(model: nn.Module, optimizer: DistributedOptimizer) -> None:
    with optimizer.gathered(), torch.no_grad():
        next(model.parameters()).zero_()
    model(batch_of(0, 0)).sum().backward()


def ones(model: nn.Module, _: DistributedOptimizer) -> None:
    model(batch_of(0, 0)).sum().backward()


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


Act = Callable[[Any, DistributedOptimizer], object]
STOPS: Mapping[str, tuple[Callable[[], nn.Module], Act, str]] = {
    "outside": (lambda: Tied("itself"), ones, r"parameter embedding\.weight is not here, as its module is not being"),
    "a view": (
        lambda: Tied("a view"),
        ones,
        r"parameter embedding\.weight is read behind the forward of its modules",
    ),
    "an old graph": (linear, behind_a_step, r"needs parameter 1\.weight as it was before a step"),
    "backward in a block": (linear, in_a_block, r"backward began in a block of optimizer\.gathered\(\)"),
    "written": (linear, written_in_a_block, r"parameter 0\.weight was written to here"),
}


@pytest.mark.parametrize("what", STOPS)
def test_what_would_read_memory_that_was_given_back_is_told_by_the_parameters_name(what: str) -> None:
    make, act, message = STOPS[what]
    models = models_of(make, 2)

    def work(world: World) -> None:
        model = models[world.rank]
        optimizer = served(model, world)
        ones(model, optimizer)
        optimizer.step()
        act(model, optimizer)

    with pytest.raises(RunError, match=message) as caught:
        on_workers(2, work, servers=1, exchange=STAGE_3)
    assert "\n" not in str(caught.value)
