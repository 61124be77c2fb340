"""Linear layers spread over workers: losses, gradients and models are those of one process with all their samples."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parts_network import MemoryMover, MemoryNetwork
from support.small_net import Net, new_net
from support.torch_scripts import taihu_run
from support.torch_workers import on_workers
from torch import nn
from torch.nn import functional

from taihu.core.base.errors import ConfigError, DataError, RunError
from taihu.core.planner.fc_mode import FcLinks
from taihu.core.planner.partition import all_bounds
from taihu.torch import sharded_linear
from taihu.torch.gradients.gradients import trained
from taihu.torch.gradients.spread import Call, Product, Spread, is_spread
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.sharded_linear import ShardedLinear, shard_linear
from taihu.torch.world import World

STEPS = 20


class Data:
    """Batches of `counts[r]` samples for worker r, and some to test."""

    def __init__(self, counts: Sequence[int]) -> None:
        rng = torch.Generator().manual_seed(3)
        self.images = [torch.randn(STEPS, count, 1, 8, 8, generator=rng) for count in counts]
        self.labels = [torch.randint(0, 10, (STEPS, count), generator=rng) for count in counts]
        self.tests = [torch.randn(rank, 1, 8, 8, generator=rng) for rank in range(len(counts))]


Seen = dict[str, Any]


def alone(data: Data) -> Seen:
    """One process: the mean over workers of their mean losses, which is that of one batch where counts are equal."""
    net = new_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    seen: Seen = {"losses": [], "gradients": [], "norms": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        batches = [(images[step], labels[step]) for images, labels in zip(data.images, data.labels, strict=True)]
        if len({len(labels) for _, labels in batches}) == 1:
            images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
            loss = functional.cross_entropy(net(images), labels)
        else:
            losses = [functional.cross_entropy(net(images), labels) for images, labels in batches]
            loss = torch.stack(losses).mean()
        loss.backward()
        seen["losses"].append(loss.item())
        seen["gradients"].append(net.conv.weight.grad.clone())
        seen["norms"].append(float(nn.utils.clip_grad_norm_(net.parameters(), 1e9)))
        optimizer.step()
    with torch.no_grad():
        seen["outputs"] = [net(images) for images in data.tests]
    return {**seen, "state": net.state_dict()}


def worker(world: World, data: Data) -> Seen:
    """The same with taihu's lines."""
    net = new_net(world.rank)
    assert shard_linear(world, net, "shard", batch=None, at_least=1) == ("fc1", "fc2")
    optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), net, world)
    assert world.spreads is not None
    seen: Seen = {"losses": [], "gradients": [], "norms": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        images, labels = data.images[world.rank][step], data.labels[world.rank][step]
        loss = functional.cross_entropy(net(images), labels)
        loss.backward()
        seen["losses"].append(loss.item())
        seen["gradients"].append(net.conv.weight.grad.clone())
        seen["norms"].append(world.spreads.total_norm(net.parameters()).item())
        optimizer.step()
    with torch.no_grad():
        seen["outputs"] = net(data.tests[world.rank])
    seen["own"] = [len(net.fc1.weight), len(net.fc2.weight)]
    state = seen["state"] = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    net.load_state_dict(state)
    seen["again"] = net.state_dict()
    return seen


@pytest.mark.parametrize(
    ("counts", "servers"), [((6, 6), 0), ((4, 4, 4), 0), ((4, 4, 4), 2), ((2, 5, 3), 0)], ids=str
)
def test_workers_are_one_process_with_all_their_samples(counts: tuple[int, ...], servers: int) -> None:
    data = Data(counts)
    expected = alone(data)
    seen = on_workers(len(counts), lambda world: worker(world, data), servers=servers)
    np.testing.assert_allclose(np.mean([each["losses"] for each in seen], axis=0), expected["losses"], rtol=1e-5)
    for rank, each in enumerate(seen):
        torch.testing.assert_close(each["gradients"], expected["gradients"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(each["norms"], expected["norms"], rtol=1e-5)
        assert each["norms"] == seen[0]["norms"]
        torch.testing.assert_close(each["outputs"], expected["outputs"][rank], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(each["state"], expected["state"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(each["again"], each["state"], rtol=0, atol=0)
        new_net().load_state_dict(each["state"])
    assert [sum(widths) for widths in zip(*(each["own"] for each in seen), strict=True)] == [33, 10]
    assert max(each["own"][1] for each in seen) == -(-10 // len(counts))


def on_ranks_in_memory(
    rows: Sequence[int], columns: tuple[int, ...], inputs: int, *, bias: bool, needs_x: bool, seed: int
) -> tuple[MemoryNetwork, list[tuple[torch.Tensor, ...]], list[torch.Tensor], nn.Linear]:
    """Outputs and gradients of each rank in fp64, the inputs, and the whole layer with its gradients."""
    rng = torch.Generator().manual_seed(seed)
    whole = nn.Linear(inputs, columns[-1], bias=bias, dtype=torch.float64)
    xs = [torch.randn(count, inputs, generator=rng, dtype=torch.float64, requires_grad=needs_x) for count in rows]
    factors = [torch.randn(count, columns[-1], generator=rng, dtype=torch.float64) for count in rows]

    def work(mover: MemoryMover) -> tuple[torch.Tensor, ...]:
        own = slice(columns[mover.rank], columns[mover.rank + 1])
        parameters = [p.detach()[own].clone().requires_grad_() for p in whole.parameters()]
        x = xs[mover.rank].detach().clone().requires_grad_(needs_x)
        spread = Spread(mover)
        spread.names.append("fc")
        call = Call.FORWARD if needs_x else Call.FIRST_FORWARD
        y = Product.apply(x, parameters[0], parameters[1] if bias else None, spread, 0, columns, call)
        (y * factors[mover.rank]).sum().backward()
        gradients = [p.grad for p in parameters]
        return (y.detach(), x.grad, *gradients) if needs_x else (y.detach(), *gradients)

    network = MemoryNetwork(len(rows))
    seen = network.run(work)
    for x, factor in zip(xs, factors, strict=True):
        ((whole(x) * factor).sum() / len(rows)).backward()
        if x.grad is not None:
            x.grad *= len(rows)
    return network, seen, xs, whole


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    sizes=st.tuples(st.integers(0, 5), st.integers(1, 5)),
    bias=st.booleans(),
    needs_x=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_products_and_gradients_are_those_of_the_whole_layer(
    rows: list[int], sizes: tuple[int, int], bias: bool, needs_x: bool, seed: int
) -> None:
    more, inputs = sizes
    columns = all_bounds(len(rows) + more, len(rows))
    _, seen, xs, whole = on_ranks_in_memory(rows, columns, inputs, bias=bias, needs_x=needs_x, seed=seed)
    for rank, (y, *gradients) in enumerate(seen):
        own = slice(columns[rank], columns[rank + 1])
        expected = [xs[rank].grad] if needs_x else []
        expected += [p.grad[own] if p.grad is not None else torch.zeros_like(p[own]) for p in whole.parameters()]
        torch.testing.assert_close(y, whole(xs[rank]).detach())
        torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("needs_x", [True, False])
def test_bytes_are_those_of_activations(needs_x: bool) -> None:
    rows, columns, inputs = (3, 1, 4), (0, 400, 800, 1000), 600
    network, *_ = on_ranks_in_memory(rows, columns, inputs, bias=True, needs_x=needs_x, seed=0)
    for rank, received in enumerate(network.received_bytes):
        own_rows, own_columns = rows[rank], columns[rank + 1] - columns[rank]
        others_rows, ranks = sum(rows) - own_rows, len(rows)
        values = others_rows * inputs + own_rows * (1000 - own_columns) + others_rows * own_columns
        values += (ranks - 1) * own_rows * inputs if needs_x else 0
        assert received == 8 * (values + 3 * (ranks - 1))


def test_a_large_layer_sends_less_than_its_gradient() -> None:
    rows, inputs, outputs = 4, 512, 600

    def sent(world: World) -> tuple[int, int]:
        spread, whole = (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(inputs, outputs)) for _ in "ab")
        shard_linear(world, spread, "shard", batch=None, at_least=1000)
        communicator = world.meet()
        before = communicator.sent_bytes
        spread(torch.randn(rows, 1, 1, inputs)).sum().backward()
        activations = communicator.sent_bytes - before
        optimizer = DistributedOptimizer(torch.optim.SGD(whole.parameters(), lr=0.1), whole, world)
        before = communicator.sent_bytes
        whole(torch.randn(rows, 1, 1, inputs)).sum().backward()
        optimizer.step()
        return activations, communicator.sent_bytes - before

    for activations, gradients in on_workers(2, sent, exchange={"transport": "tcp"}):
        formula = 4 * rows * (2 * inputs + outputs)
        assert formula <= activations <= 1.2 * formula
        assert gradients >= 4 * inputs * outputs > 20 * activations


def test_mistakes_are_told_in_a_line_and_cost_nothing() -> None:
    def work(world: World) -> str:
        net = new_net()
        with pytest.raises(ConfigError, match=r"Linear\(3, 1\): 1 outputs cannot be split over 2 workers"):
            shard_linear(world, nn.Linear(3, 1), "shard", batch=None, at_least=1)
        with pytest.raises(ConfigError, match=r"expected fp32 or fp64 weights on the CPU, seen torch\.bfloat16"):
            shard_linear(world, nn.Linear(3, 2, dtype=torch.bfloat16), "shard", batch=None, at_least=1)
        early = torch.optim.SGD(net.parameters(), lr=0.1)
        shard_linear(world, net.fc1, "shard", batch=None, at_least=1)
        for model in (net, None):
            with pytest.raises(ConfigError, match="the optimizer was made before shard_linear"):
                DistributedOptimizer(early, model, world)
        optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net, world)
        with pytest.raises(RunError, match="shard_linear comes too late"):
            shard_linear(world, net.fc2, "shard", batch=None, at_least=1)
        with pytest.raises(ConfigError, match=r"join\(\): .* give each as many batches"), optimizer.join():
            pass
        with pytest.raises(RunError, match="spread layers are called by all workers together") as told:
            net.state_dict() if world.rank == 0 else net(torch.randn(2, 1, 8, 8))
        net(torch.randn(2, 1, 8, 8)).sum().backward()  # all goes on
        return str(told.value)

    first, second = on_workers(2, work)
    assert "worker 0 is at state_dict() of Linear(144, 33), worker 1 at a forward of Linear(144, 33)" in first
    assert "worker 1 is at a forward of Linear(144, 33), worker 0 at state_dict()" in second


def test_one_worker_alone_spreads_nothing() -> None:
    data = Data((6,))

    def work(world: World) -> tuple[list[float], list[float]]:
        net = new_net()
        assert not shard_linear(world, net, "shard", batch=None, at_least=1)
        assert type(net.fc1) is nn.Linear
        optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), net, world)
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(data.images[0][step]), data.labels[0][step])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, alone(data)["losses"]

    # By as many threads; where arrays lie in memory still decides how products are rounded.
    ((seen, expected),) = on_workers(1, work)
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected))


def test_what_is_spread_by_itself_is_what_the_planner_finds_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """By formula: 144 x 33 has 4,785 gradients, and moves 321 values for an example of each of two workers."""
    links = FcLinks(transfer_seconds=1e-6, exchange_seconds=1e-6, seconds_per_byte=1e-6)
    monkeypatch.setattr(sharded_linear, "agree_on_links", lambda *_: links)

    def work(world: World) -> list[tuple[str, ...]]:
        spread = [shard_linear(world, new_net(), "auto", batch=batch, at_least=1) for batch in (2, 14, 15, 100)]
        with pytest.raises(ConfigError, match="expected batch"):
            shard_linear(world, new_net(), "auto", batch=None, at_least=1)
        shard_linear(world, nn.Linear(2, 2), "shard", batch=None, at_least=1)
        return spread

    for spread in on_workers(2, work):
        assert spread == [("fc1", "fc2"), ("fc1",), (), ()]


def one_layer() -> ShardedLinear:
    """A spread layer of one rank."""
    layer: Any = nn.Linear(5, 4)
    sharded_linear._turn(layer, "fc", (0, 4), Spread(MemoryMover(MemoryNetwork(1), 0)))
    assert isinstance(layer, ShardedLinear)
    return layer


def test_copies_are_spread_and_pickles_refused() -> None:
    layer = one_layer()
    copied = copy.deepcopy(layer)
    assert all(map(is_spread, copied.parameters()))
    torch.testing.assert_close(copied(torch.ones(2, 3, 5)), layer(torch.ones(2, 3, 5)))
    with pytest.raises(ConfigError, match="save the model's state_dict"):
        pickle.dumps(layer)
    assert repr(layer) == "ShardedLinear(in_features=5, out_features=4, bias=True, outputs 0 to 3 here)"


def test_a_state_of_another_shape_is_refused() -> None:
    layer = one_layer()
    before = layer.weight.detach().clone()
    with pytest.raises(RuntimeError, match=r"weight: expected the whole layer's shape \(4, 5\), seen \(3, 5\)"):
        layer.load_state_dict(nn.Linear(5, 3).state_dict())
    torch.testing.assert_close(layer.weight.detach(), before)


def test_what_others_use_of_a_layer_stays_whole() -> None:
    tied, attention = nn.Linear(8, 40, bias=False), nn.MultiheadAttention(8, 2)
    embedding = nn.Embedding(40, 8)
    embedding.weight = tied.weight
    model = nn.ModuleDict({"tied": tied, "embedding": embedding, "attention": attention, "free": nn.Linear(8, 40)})
    assert list(sharded_linear._candidates(model, 1)) == ["free"]
    assert not sharded_linear._candidates(model, 321)


def test_a_whole_state_may_be_taken_over_as_it_is() -> None:
    layer, whole = one_layer(), nn.Linear(5, 4)
    layer.load_state_dict(whole.state_dict(), assign=True)
    assert all(map(is_spread, layer.parameters()))
    torch.testing.assert_close(layer.state_dict(), whole.state_dict())


def test_wrong_examples_and_models_without_another_layer_are_refused() -> None:
    layer = one_layer()
    with pytest.raises(DataError, match=r"fc: expected examples \(\.\.\., 5\), seen \(10, 3\)"):
        layer(torch.ones(10, 3))
    with pytest.raises(ConfigError, match="every parameter of the optimizer is spread"):
        trained(torch.optim.SGD(layer.parameters(), lr=0.1), layer)


def test_transformers_take_no_way_past_a_spread_layer() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    network, x = MemoryNetwork(1), torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = encoder(x)
        sharded_linear._turn(encoder.linear1, "fc", (0, 16), Spread(MemoryMover(network, 0)))
        torch.testing.assert_close(encoder(x), expected)
    assert network.names == [["call", "gather", "regather"]]


def test_a_script_saves_whole_models(tmp_path: Path) -> None:
    done = taihu_run(tmp_path, "--servers", "1", script="spread.py", arguments=("model.pt",), workers=2)
    assert done.returncode == 0, done.stderr
    net = Net()
    net.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    expected = new_net()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    rng = torch.Generator().manual_seed(5)
    for _ in range(3):
        optimizer.zero_grad()
        functional.mse_loss(expected(torch.randn(6, 1, 8, 8, generator=rng)), torch.ones(6, 10)).backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 0.3)
        optimizer.step()
    torch.testing.assert_close(net.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-6)
