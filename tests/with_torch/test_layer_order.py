"""Layers in the order of worker 0's first backward: modules do not run in the order they were made in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.torch_workers import on_workers
from torch import nn

from taihu.core.base.errors import ConfigError, TaihuError
from taihu.core.compression.state import CompressionState
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.torch.gradients.order import ORDER, order_of_state, state_in_order, whole_order, with_layers
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World
from taihu.worker.exchange.ground import Waits
from taihu.worker.training.step_driver import LayerProgram

STEPS, BATCH, LATE = 6, 12, 3
ORDERS = ((2, 0, 4, 1, 3), (4, 3, 0, 2, 1), (0, 1, 2, 3, 4))
WAYS: dict[str, dict[str, Any]] = {
    "ring": {},
    "servers": {"servers": 2},
    "servers update": {"servers": 2, "update": "servers"},
    "servers update in stage 2": {"servers": 2, "update": "servers", "exchange": {"zero": 2}},
}


class Net(nn.Module):  # type: ignore[misc]
    """Branches that run in any order and give the same; the head, which comes last, was made first."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.head = nn.Linear(7, 3)
        self.branches = nn.ModuleList(nn.Linear(5, 7) for _ in order)
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.late = nn.Linear(3, 3)
        self.unused = nn.Linear(2, 2)
        self.order = order
        # Workers are threads: the generator that layers draw from belongs to all of them.
        drawn = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-0.4, 0.4, generator=drawn)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        x = self.frozen(x)
        outputs = {number: torch.tanh(self.branches[number](x)) for number in self.order}
        y = self.head(torch.stack([outputs[number] for number in range(len(outputs))]).sum(0))
        return y + self.late(y) if step >= LATE else y


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(40 + step)
    return torch.randn(BATCH, 5, generator=drawn), torch.randn(BATCH, 3, generator=drawn)


def train(model: Net, optimizer: Any, share: slice, steps: range | None = None) -> list[float]:
    losses = []
    for step in range(STEPS) if steps is None else steps:
        optimizer.zero_grad()
        inputs, labels = batch(step)
        loss = nn.functional.mse_loss(model(inputs[share], step), labels[share])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def share_of(world: World) -> slice:
    return slice(world.rank * BATCH // world.size, (world.rank + 1) * BATCH // world.size)


def noted(model: Net, events: list[str]) -> list[Any]:
    """Have the names of parameters noted as their gradients are complete."""
    return [
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: events.append(name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]


def plain_order(order: Sequence[int]) -> list[str]:
    """Names of parameters as PyTorch alone completes their gradients."""
    model, names = Net(order), list[str]()
    noted(model, names)
    model(batch(0)[0], 0).sum().backward()
    return names


def names_of(optimizer: DistributedOptimizer) -> list[str]:
    steps = optimizer._steps
    assert steps is not None
    assert steps._opened is not None
    return [layer.name for layer in with_layers(steps._set.layout, steps._opened.places.order).layers]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_complete_first_is_pushed_first_in_worker_0s_order(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has an order of its own, and losses are those of one process with all samples."""
    tables = dict(WAYS[way])
    update = tables.pop("update", "workers")
    told: dict[int, list[str]] = {}
    ready = LayerProgram.group_ready

    def tell(program: LayerProgram, group: int) -> Waits:
        if (events := told.get(id(program))) is not None:
            events.append(f"ready {group}")
        return ready(program, group)

    monkeypatch.setattr(LayerProgram, "group_ready", tell)

    def work(world: World) -> tuple[list[float], list[str], list[str], list[torch.Tensor]]:
        model = Net(ORDERS[world.rank])
        if world.rank:
            with torch.no_grad():
                model.head.weight.zero_()
        events: list[str] = []
        noted(model, events)
        optimizer = DistributedOptimizer(sgd(model), model, world, update=update)
        losses = train(model, optimizer, share_of(world), range(1))
        assert optimizer._steps is not None
        assert optimizer._steps._opened is not None
        told[id(optimizer._steps._opened.steps._driver._program)] = events
        events.clear()
        losses += train(model, optimizer, share_of(world), range(1, 2))
        pushed = [*events]
        losses += train(model, optimizer, share_of(world), range(2, STEPS))
        optimizer.synchronize()
        return losses, names_of(optimizer), pushed, [p.detach().clone() for p in model.parameters()]

    seen = on_workers(3, work, **tables)
    alone = Net(ORDERS[0])
    expected = train(alone, sgd(alone), slice(0, BATCH))
    np.testing.assert_allclose(np.mean([losses for losses, *_ in seen], axis=0), expected, rtol=1e-4)
    came = plain_order(ORDERS[0])
    rest = [f"{module}.{name}" for module in ("unused", "late") for name in ("bias", "weight")]
    for _, layers, _, parameters in seen:
        assert layers == [*came, *rest]
        assert all(map(torch.equal, parameters, seen[0][3]))
        torch.testing.assert_close(parameters, [p.detach() for p in alone.parameters()], rtol=1e-4, atol=1e-5)
    # Nobody waits for another: as soon as a gradient is complete its layer is told of.
    events = [event for layer, name in enumerate(came) for event in (name, f"ready {layer}")]
    assert seen[0][2] == [*events, *(f"ready {len(came) + late}" for late in range(len(rest)))]
    assert [event for event in seen[1][2] if event in came] == plain_order(ORDERS[1])
    assert [e for e in seen[1][2] if e.startswith("ready")] == [e for e in seen[0][2] if e.startswith("ready")]


def test_a_first_backward_that_only_adds_up_is_not_the_one_that_counts() -> None:
    def work(world: World) -> tuple[list[str], list[torch.Tensor]]:
        model = Net(ORDERS[0])
        optimizer = DistributedOptimizer(sgd(model), model, world)
        inputs, labels = batch(0)
        with optimizer.no_sync():
            nn.functional.mse_loss(model(inputs, 0), labels).backward()
        model.order = ORDERS[1]
        inputs, labels = batch(1)
        nn.functional.mse_loss(model(inputs, 0), labels).backward()
        return names_of(optimizer), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    (names, gradients), (others, same) = on_workers(2, work)
    came = plain_order(ORDERS[1])
    assert names[: len(came)] == others[: len(came)] == came
    alone = Net(ORDERS[0])
    for step in range(2):
        inputs, labels = batch(step)
        nn.functional.mse_loss(alone(inputs, 0), labels).backward()
    expected = [p.grad for p in alone.parameters() if p.grad is not None]
    torch.testing.assert_close(gradients, expected)
    assert all(map(torch.equal, gradients, same))


def test_a_worker_0_without_a_batch_of_its_own_has_no_order_to_tell_of() -> None:
    def work(world: World) -> tuple[list[str], list[torch.Tensor]]:
        model = Net(ORDERS[0])
        optimizer = DistributedOptimizer(sgd(model), model, world)
        with optimizer.join():
            train(model, optimizer, slice(0, BATCH), range(2 * world.rank))
        return names_of(optimizer), [p.detach().clone() for p in model.parameters()]

    seen = on_workers(2, work)
    alone = Net(ORDERS[0])
    plain = sgd(alone)
    for step in range(2):
        plain.zero_grad()
        inputs, labels = batch(step)
        (nn.functional.mse_loss(alone(inputs, step), labels) / 2).backward()
        plain.step()
    backwards = [name for name, p in reversed([*alone.named_parameters()]) if p.requires_grad]
    for names, parameters in seen:
        assert names == backwards
        torch.testing.assert_close(parameters, [p.detach() for p in alone.parameters()])


def test_workers_that_train_other_parameters_are_told_so_at_the_first_backward() -> None:
    """One more layer is frozen on one of them: neither their number nor their order is alike."""

    def work(world: World) -> None:
        model = Net(ORDERS[0])
        model.unused.requires_grad_(world.rank == 1)
        optimizer = DistributedOptimizer(sgd(model), model, world)
        train(model, optimizer, slice(0, BATCH), range(1))

    with pytest.raises(TaihuError, match="model differs from the one the servers hold"):
        on_workers(2, work)


COMPRESSED: Mapping[str, Any] = {"compression": {"method": "lags", "density": 0.1}, "exchange": {"plan": "per-layer"}}


def kept(optimizer: DistributedOptimizer) -> dict[str, torch.Tensor]:
    """Residuals by the names of parameters."""
    state, steps = optimizer.state_dict(), optimizer._steps
    assert steps is not None
    layout = with_layers(steps._set.layout, state["taihu.order"].tolist())
    bounds = zip(layout.layers, layout.offsets, layout.offsets[1:], strict=False)
    return {layer.name: state["taihu.residual"][start:stop] for layer, start, stop in bounds}


def saved_by(order: Sequence[int], world: World) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    model = Net(order)
    optimizer = DistributedOptimizer(sgd(model), model, world)
    train(model, optimizer, share_of(world), range(3))
    return optimizer.state_dict(), kept(optimizer)


@pytest.mark.parametrize("late", [False, True])
def test_a_state_brings_its_order_and_one_that_comes_later_is_put_into_the_present_one(late: bool) -> None:
    saved = on_workers(2, partial(saved_by, ORDERS[0]), **COMPRESSED)
    came = plain_order(ORDERS[0])

    def work(world: World) -> None:
        state, held = saved[world.rank]
        model = Net(ORDERS[1])
        optimizer = DistributedOptimizer(sgd(model), model, world)
        if late:
            train(model, optimizer, share_of(world), range(1))
        else:
            assert "taihu.residual" not in optimizer.state_dict()
        optimizer.load_state_dict(state)
        assert all(torch.equal(value, held[name]) for name, value in kept(optimizer).items())
        train(model, optimizer, share_of(world), range(1))
        expected = plain_order(ORDERS[1]) if late else came
        assert names_of(optimizer)[: len(came)] == expected

    on_workers(2, work, **COMPRESSED)


def test_a_state_of_other_parameters_is_refused_before_there_is_an_exchange() -> None:
    def work(world: World) -> None:
        model = Net(ORDERS[0])
        optimizer = DistributedOptimizer(sgd(model), model, world)
        state = {**optimizer.optimizer.state_dict(), "taihu.residual": torch.zeros(3)}
        with pytest.raises(ConfigError, match=r"holds back 3 values, expected 252"):
            optimizer.load_state_dict(state)
        train(model, optimizer, share_of(world), range(1))

    on_workers(2, work, **COMPRESSED)


def layout_of_sizes(sizes: Sequence[int]) -> Layout:
    return Layout(tuple(LayerSpec(f"layer {n}", (TensorSpec("gradient", (size,)),)) for n, size in enumerate(sizes)))


@st.composite
def layouts_in_two_orders(draw: st.DrawFn) -> tuple[Layout, list[int], list[int]]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    numbers = st.permutations(range(len(sizes)))
    return layout_of_sizes(sizes), draw(numbers), draw(numbers)


@given(layouts_in_two_orders(), st.booleans(), st.booleans())
def test_values_of_a_state_follow_their_layers(
    drawn: tuple[Layout, list[int], list[int]], has_velocity: bool, has_order: bool
) -> None:
    layout, before, after = drawn
    before = before if has_order else list(range(len(before)))
    # The value of an element names its layer and its place there.
    values = {
        number: [number * 10.0 + place for place in range(layer.elements)]
        for number, layer in enumerate(layout.layers)
    }
    held = np.array([value for number in before for value in values[number]], dtype=np.float32)
    names = ("thresholds", "ages", "kept", "rates")
    units = {"bounds": np.array([[0, 1]]), **dict.fromkeys(names, np.ones(1))}
    squares = np.array([2.0, 3.0])  # of all layers together
    arrays = {"residual": held, "velocity": -held if has_velocity else held[:0], **units, "squares": squares}
    if has_order:
        arrays[ORDER] = np.array(before)
    moved = state_in_order(arrays, layout, after)
    expected = [value for number in after for value in values[number]]
    assert moved["residual"].tolist() == expected
    assert moved["velocity"].tolist() == ([-value for value in expected] if has_velocity else [])
    assert order_of_state(moved, layout) == tuple(after)
    assert set(units) <= set(moved)
    assert len(moved["bounds"]) == (before == after)
    assert moved["squares"].tolist() == [2.0, 3.0]
    assert {"residual", "velocity", "squares", *units} == set(CompressionState((), held, held).arrays())


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), unique=True))))
def test_an_order_has_each_number_once_and_what_came_first(drawn: tuple[int, list[int]]) -> None:
    count, came = drawn
    order = whole_order(came, count)
    assert list(order[: len(came)]) == came
    assert list(order[len(came) :]) == [number for number in range(count) if number not in came]


@pytest.mark.parametrize("order", [[0, 0, 1], [0, 1], [0, 1, 3], [-1, 0, 1]])
def test_an_order_of_other_parameters_is_refused(order: list[int]) -> None:
    arrays = {"residual": np.zeros(6, dtype=np.float32), ORDER: np.array(order)}
    with pytest.raises(ConfigError, match="expected each of 3 once"):
        order_of_state(arrays, layout_of_sizes([1, 2, 3]))
