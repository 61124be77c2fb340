"""Fully connected layers spread over ranks: the gradients are those of one process, by every scheme and split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.parts_network import MemoryMover, MemoryNetwork

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.optimization import OptimizerShard
from taihu.core.planner.partition import slice_bounds
from taihu.core.settings import OptimizerSettings
from taihu.worker.engine import (
    BatchNorm,
    Conv2d,
    Dropout,
    Flatten,
    Layer,
    Linear,
    Model,
    ReLU,
    Sequential,
    StepContext,
    StepHooks,
)
from taihu.worker.engine.base.loss import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from taihu.worker.fc.connected import fully_connected_layers, tail_start
from taihu.worker.fc.footprint import TailFootprint
from taihu.worker.fc.hybrid import HybridModel
from taihu.worker.fc.own_inputs import InputsKept
from taihu.worker.fc.passes import Scheme, plan_passes
from taihu.worker.fc.stage import StagePart

CLASSES = 5
SCHEMES: tuple[Scheme, ...] = ("gather", "turns", "slices")


def network(units: tuple[int, ...], *, bias: bool = True, front: bool = True) -> Model:
    """A convolution, then layers of `units` with rectifiers and dropout between, then the classifier."""
    layers: list[Layer] = [Conv2d(2, 3, padding=1), ReLU()] if front else []
    layers.append(Flatten())
    for width in units:
        layers += [Linear(width, bias=bias), ReLU(), Dropout(0.3)]
    return Model(Sequential([*layers, Linear(CLASSES, gain=1.0)]), (3, 4, 2), CLASSES)


@dataclass
class Case:
    """A job of one step."""

    ranks: int
    batch: int
    units: tuple[int, ...]
    scheme: Scheme
    sharded: tuple[str, ...]
    bias: bool = True
    loss: Loss = field(default_factory=CrossEntropy)
    copied: bool = False
    recompute: int | None = None
    gradient_bytes: int = 16 << 20
    inputs: InputsKept = "all"
    images: NDArray[Any] = field(init=False)
    targets: NDArray[Any] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.batch)
        self.images = rng.standard_normal((self.ranks * self.batch, 3, 4, 2))
        self.targets = rng.integers(0, CLASSES, self.ranks * self.batch)
        if self.loss.name != "cross-entropy":
            self.targets = rng.random((self.ranks * self.batch, CLASSES))


@dataclass
class Recorder:
    """An optimizer that keeps what it is given, by the range that it is of."""

    gradients: dict[int, list[NDArray[Any]]] = field(default_factory=dict)
    scales: list[float] = field(default_factory=list)

    def update(self, start: int, stop: int, gradient: NDArray[Any], step: int, scale: float = 1.0) -> None:
        assert (stop - start, step) == (len(gradient), 7)
        self.gradients.setdefault(start, []).append(gradient.copy())
        self.scales.append(scale)

    @property
    def whole(self) -> NDArray[Any]:
        """The sum of all that came, range after range."""
        return np.concatenate([np.sum(self.gradients[start], axis=0) for start in sorted(self.gradients)])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ranks = draw(st.integers(1, 4))
    units = tuple(draw(st.lists(st.integers(ranks, 9), max_size=3)))
    names = [f"fc{number}" for number in range(1, len(units) + 2)]
    sharded = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    scheme, batch, bias = draw(st.sampled_from(SCHEMES)), draw(st.integers(1, 6)), draw(st.booleans())
    losses: tuple[Loss, ...] = (CrossEntropy(), CrossEntropy(0.2), MeanSquaredError(), BinaryCrossEntropy())
    loss = draw(st.sampled_from(losses))
    copied, recompute = draw(st.booleans()), draw(st.sampled_from([None, 1, 2]))
    gradient_bytes = draw(st.sampled_from([1, 200, 16 << 20]))
    inputs: InputsKept = draw(st.sampled_from(["all", "own", "spilled"]))
    return Case(ranks, batch, units, scheme, tuple(sharded), bias, loss, copied, recompute, gradient_bytes, inputs)


def context(first_sample: int) -> StepContext:
    return StepContext(training=True, seed=3, step=7, first_sample=first_sample)


def in_one_process(case: Case) -> tuple[float, dict[str, NDArray[Any]]]:
    """Loss and gradients, by tensor, of the whole batch."""
    model = network(case.units, bias=case.bias)
    model.use_loss(case.loss)
    parameters, gradients = np.zeros((2, model.layout.elements))
    model.bind(parameters, gradients)
    model.initialize(1)
    loss = model.train(case.images, case.targets, context(0), StepHooks())
    by_name = {
        f"{layer.name}/{name}": gradient
        for layer in model.parameter_layers
        for name, gradient in layer.gradients.items()
    }
    return loss, by_name


def one_rank(case: Case, mover: MemoryMover) -> tuple[float, HybridModel, dict[str, NDArray[Any]], Recorder]:
    model = network(case.units, bias=case.bias)
    model.use_loss(case.loss)
    hybrid = HybridModel(
        model,
        case.sharded,
        rank=mover.rank,
        size=case.ranks,
        copied=case.copied,
        gradient_bytes=case.gradient_bytes,
        dtype=np.float64,
    )
    if case.recompute is not None:
        model.recompute(case.recompute, stop=hybrid.front)
    parameters, gradients = np.zeros((2, hybrid.layout.elements))
    hybrid.bind(parameters, gradients)
    hybrid.initialize(1)
    hybrid.initialize_shards(1)
    recorder = Recorder()
    hybrid.attach(mover, recorder, scheme=case.scheme, inputs=case.inputs)
    mine = slice(mover.rank * case.batch, (mover.rank + 1) * case.batch)
    ready: list[int] = []
    read: list[int] = []
    computed: Counter[tuple[str, str, int]] = Counter()
    hooks = StepHooks(
        read.append,
        lambda loss: read.append(-1),
        ready.append,
        part_computed=lambda layer, part, rows: computed.update([(layer, part, rows)]),
    )
    loss = hybrid.train(case.images[mine], case.targets[mine], context(mine.start), hooks)
    layers = len(hybrid.layout.layers)
    assert ready == list(range(layers))
    assert read == [*reversed(range(layers)), -1]
    assert computed == told_before(hybrid.end_parts(case.batch))
    kept = {
        f"{layer.name}/{tensor.name}": gradients[start:][: tensor.elements].reshape(tensor.shape)
        for layer, offset in zip(hybrid.layout.layers, hybrid.layout.offsets, strict=False)
        for tensor, start in zip(
            layer.tensors, np.cumsum([offset, *(t.elements for t in layer.tensors)]).tolist(), strict=False
        )
    }
    return loss, hybrid, kept, recorder


def told_before(parts: Sequence[StagePart]) -> Counter[tuple[str, str, int]]:
    """The parts of an end that a step computes, from numbers alone."""
    told: Counter[tuple[str, str, int]] = Counter()
    for part in parts:
        told.update((part.name, direction, rows) for direction in ("forward", "input gradient") for rows in part.rows)
        told.update((part.name, "weight gradients", rows) for rows in part.gradient_rows)
    return told


@settings(deadline=None, max_examples=60)
@given(cases())
def test_the_gradients_are_those_of_one_process(case: Case) -> None:
    loss, expected = in_one_process(case)
    results = MemoryNetwork(case.ranks).run(lambda mover: one_rank(case, mover))
    np.testing.assert_allclose(np.mean([result[0] for result in results]), loss, rtol=1e-9)
    shards = {name.rpartition("/")[0] for name in expected} - {name.rpartition("/")[0] for name in results[0][2]}
    assert shards == set(case.sharded)
    for name, values in expected.items():
        layer = name.rpartition("/")[0]
        if layer not in case.sharded:
            mean = np.mean([kept[name] for _, _, kept, _ in results], axis=0)
            np.testing.assert_allclose(mean, values, rtol=1e-9, atol=1e-12)
    for rank, (_, hybrid, _, recorder) in enumerate(results):
        assert set(recorder.scales) == {1 / case.ranks}
        offset = 0
        for layer in hybrid.sharded:
            for tensor in ("weight", "bias"):
                if f"{layer}/{tensor}" not in expected:
                    continue
                whole = expected[f"{layer}/{tensor}"]
                own = whole[..., slice(*slice_bounds(whole.shape[-1], case.ranks, rank))]
                seen = recorder.whole[offset : offset + own.size].reshape(own.shape) / case.ranks
                np.testing.assert_allclose(seen, own, rtol=1e-9, atol=1e-12)
                offset += own.size
        assert offset == len(recorder.whole)
    # In float64 here, and planned in float32.
    assert results[-1][1].tail_bytes == 2 * footprint(case).trained_bytes(case.batch)


def footprint(case: Case) -> TailFootprint:
    model = network(case.units, bias=case.bias)
    return TailFootprint(
        model.chain[tail_start(model) :], case.sharded, ranks=case.ranks, scheme=case.scheme, inputs=case.inputs
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_layer_moves_the_lean_volumes(scheme: Scheme) -> None:
    case = Case(3, 6, (), scheme, ("fc1",))
    exchange = MemoryNetwork(3)
    exchange.run(lambda mover: one_rank(case, mover))
    inputs = 3 * 4 * 2
    rows, columns = case.batch, CLASSES
    # docs/methods.md section 3: 2 (P - 1) M K + 2 M N (P - 1) / P values received per rank, on average.
    lean = 2 * 2 * rows * inputs + 2 * rows * columns * 2 / 3
    assert sum(exchange.received_bytes) / 3 == 8 * lean


@pytest.mark.parametrize("inputs", ["own", "spilled"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_inputs_that_do_not_stay_are_gathered_twice(scheme: Scheme, inputs: InputsKept) -> None:
    """Partitioned activations: one more allgather a layer, and the same bits."""

    def gradients(kept: InputsKept) -> tuple[list[NDArray[Any]], int]:
        case = Case(3, 6, (9,), scheme, ("fc1", "fc2"), inputs=kept)
        exchange = MemoryNetwork(3)
        results = exchange.run(lambda mover: one_rank(case, mover))
        return [recorder.whole for *_, recorder in results], sum(exchange.received_bytes)

    (expected, volume), (seen, more) = gradients("all"), gradients(inputs)
    assert all((own == values).all() for own, values in zip(seen, expected, strict=True))
    # All ranks' examples, of which each rank has a third: rows of the first layer's inputs, columns of the second's.
    assert more - volume == 8 * 2 * 18 * (24 + 9)


def test_layers_in_a_row_stay_sharded() -> None:
    """Between two sharded layers nothing but columns moves: no detour over the examples' owners."""
    exchange = MemoryNetwork(2)
    exchange.run(lambda mover: one_rank(Case(2, 4, (6,), "gather", ("fc1", "fc2")), mover))
    assert exchange.names[0] == ["gather", "gather", "regather", "scatter", "scatter", "scatter"]


@pytest.mark.parametrize("scheme", ["turns", "slices"])
def test_the_next_pass_is_on_its_way_while_one_is_computed(scheme: Scheme) -> None:
    exchange = MemoryNetwork(2)
    exchange.run(lambda mover: one_rank(Case(2, 4, (), scheme, ("fc1",)), mover))
    one_pass = ["regather", "scatter", "scatter"]
    assert exchange.names[0] == ["gather", "gather", *one_pass, *one_pass]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_update_after_each_pass_is_one_by_the_mean_of_its_examples(scheme: Scheme) -> None:
    """With a learning rate of 0 in effect, the gradients of all passes add up to the whole one."""
    case = Case(2, 4, (6,), scheme, ("fc1",))

    def work(mover: MemoryMover) -> tuple[Recorder, Recorder]:
        recorders, whole = [], []
        for each_pass in (False, True):
            hybrid = HybridModel(network((6,)), case.sharded, rank=mover.rank, size=2, dtype=np.float64)
            parameters, gradients = np.zeros((2, hybrid.layout.elements))
            hybrid.bind(parameters, gradients)
            hybrid.initialize(1)
            hybrid.initialize_shards(1)
            recorders.append(Recorder())
            hybrid.attach(mover, recorders[-1], scheme=scheme, update_each_pass=each_pass)
            mine = slice(mover.rank * 4, mover.rank * 4 + 4)
            hybrid.train(case.images[mine], case.targets[mine], context(mine.start), StepHooks())
            whole.append(gradients)
        # Layers that are not sharded, behind those that are too, have the gradients of all passes in either case.
        np.testing.assert_allclose(whole[1], whole[0], rtol=1e-9, atol=1e-12)
        return recorders[0], recorders[1]

    for once, each in MemoryNetwork(2).run(work):
        passes = len(plan_passes(scheme, 2, 4))
        assert len(each.gradients[0]) == passes
        np.testing.assert_allclose(each.whole, once.whole, rtol=1e-9, atol=1e-12)
        # A pass sums the means of two halves of the batch, or of one rank's half of all examples.
        assert set(each.scales) == {passes / 2}


def saved(hybrid: HybridModel, mover: MemoryMover) -> dict[str, NDArray[np.float32]]:
    """Tensors of the whole model, as they are when each piece is read; empty on all ranks but 0."""
    tensors: dict[str, NDArray[np.float32]] = {}

    def write(model: Model, pieces: Iterator[NDArray[Any]]) -> None:
        values = np.concatenate([piece.reshape(-1) for piece in pieces])
        assert len(values) == model.layout.elements
        for layer in model.parameter_layers:
            for spec in layer.tensors:
                tensors[f"{layer.name}/{spec.name}"] = values[: spec.elements].reshape(spec.shape)
                values = values[spec.elements :]

    asked: list[int] = []
    hybrid.save(mover, write, asked.append)
    assert asked == list(range(len(hybrid.layout.layers)))
    return tensors


@given(case=cases(), examples=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_outputs_are_those_of_the_whole_model(case: Case, examples: int) -> None:
    """Worker 0 has the examples; every shard stays where it is."""
    whole = network(case.units, bias=case.bias)
    parameters, gradients = np.zeros((2, whole.layout.elements))
    whole.bind(parameters, gradients)
    whole.initialize(1)
    inputs = np.random.default_rng(examples).standard_normal((examples, 3, 4, 2))
    testing = StepContext(training=False, seed=0, step=0, first_sample=0)

    def work(mover: MemoryMover) -> NDArray[Any] | None:
        hybrid = HybridModel(
            network(case.units, bias=case.bias),
            case.sharded,
            rank=mover.rank,
            size=case.ranks,
            copied=case.copied,
            dtype=np.float64,
        )
        own, own_gradients = np.zeros((2, hybrid.layout.elements))
        hybrid.bind(own, own_gradients)
        if not mover.rank:
            hybrid.initialize(1)
        hybrid.initialize_shards(1)
        hybrid.attach(mover, Recorder(), scheme=case.scheme)
        read: list[int] = []
        outputs = hybrid.outputs(None if mover.rank else inputs, examples, testing, read.append)
        assert read == [*reversed(range(len(hybrid.layout.layers)))]
        return outputs

    first, *others = MemoryNetwork(case.ranks).run(work)
    assert first is not None
    np.testing.assert_allclose(first, whole.forward(inputs, testing), rtol=1e-9, atol=1e-12)
    assert all(outputs is None for outputs in others)


def test_the_whole_model_is_collected_after_steps() -> None:
    """Three steps of momentum SGD end where one process with the whole batch ends, seen as a whole on rank 0."""
    optimizer = OptimizerSettings(learning_rate=0.1, momentum=0.9)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((3, 8, 3, 4, 2), dtype=np.float32)
    labels = rng.integers(0, CLASSES, (3, 8))

    whole = network((6,))
    parameters, gradients = np.zeros((2, whole.layout.elements), dtype=np.float32)
    whole.bind(parameters, gradients)
    whole.initialize(1)
    shard = OptimizerShard(optimizer, parameters)
    for step in range(3):
        whole.train(images[step], labels[step], StepContext(True, 3, step + 1, 0), StepHooks())
        shard.update(0, len(parameters), gradients, step + 1)

    exchange = MemoryNetwork(2)

    def work(mover: MemoryMover) -> NDArray[np.float32]:
        hybrid = HybridModel(network((6,)), ("fc1", "fc2"), rank=mover.rank, size=2)
        own, own_gradients = np.zeros((2, hybrid.layout.elements), dtype=np.float32)
        hybrid.bind(own, own_gradients)
        hybrid.initialize(1)
        hybrid.initialize_shards(1)
        hybrid.attach(mover, OptimizerShard(optimizer, hybrid.shards), scheme="slices")
        rest = OptimizerShard(optimizer, own)
        mine = slice(mover.rank * 4, mover.rank * 4 + 4)
        for step in range(3):
            context_ = StepContext(True, 3, step + 1, mine.start)
            hybrid.train(images[step][mine], labels[step][mine], context_, StepHooks())
            exchange.box(9, 1 - mover.rank).put(own_gradients.copy())
            total = own_gradients + exchange.box(9, mover.rank).get(timeout=120)
            rest.update(0, len(own), total.astype(np.float32), step + 1, scale=0.5)
        return np.concatenate(
            [values.reshape(-1) for values in saved(hybrid, mover).values()] or [np.empty(0, np.float32)]
        )

    collected = exchange.run(work)[0]
    np.testing.assert_allclose(collected, parameters, rtol=1e-4, atol=1e-6)


def test_the_running_moments_are_collected_too() -> None:
    """Batch norm is in front of what is sharded, so that worker 0's moments are those of its own samples."""

    def normed() -> Model:
        layers: list[Layer] = [Conv2d(2, 3, padding=1), BatchNorm(), ReLU(), Flatten(), Linear(CLASSES, gain=1.0)]
        return Model(Sequential(layers), (3, 4, 2), CLASSES)

    images = np.random.default_rng(0).standard_normal((8, 3, 4, 2), dtype=np.float32)
    labels = np.arange(8) % CLASSES

    def bound(model: Model | HybridModel) -> None:
        parameters, gradients = np.zeros((2, model.layout.elements), dtype=np.float32)
        model.bind(parameters, gradients)
        model.initialize(1)

    alone = normed()
    bound(alone)
    alone.train(images[:4], labels[:4], context(0), StepHooks())

    def work(mover: MemoryMover) -> dict[str, NDArray[np.float32]]:
        model = normed()
        hybrid = HybridModel(model, ("fc1",), rank=mover.rank, size=2)
        bound(hybrid)
        hybrid.initialize_shards(1)
        hybrid.attach(mover, Recorder())
        mine = slice(mover.rank * 4, mover.rank * 4 + 4)
        hybrid.train(images[mine], labels[mine], context(mine.start), StepHooks())
        saved(hybrid, mover)
        return dict(model.buffers())

    collected, expected = MemoryNetwork(2).run(work)[0], alone.buffers()
    assert collected.keys() == expected.keys()
    fresh = normed()
    bound(fresh)
    assert all((values != expected[name]).any() for name, values in fresh.buffers().items())
    for name, values in expected.items():
        np.testing.assert_allclose(collected[name], values, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_sharded_is_named() -> None:
    model = network((6,))
    assert [layer.name for layer in fully_connected_layers(model)] == ["fc1", "fc2"]
    with pytest.raises(ConfigError, match=r"layer conv1 cannot be sharded; expected one of .*: fc1, fc2"):
        HybridModel(model, ("conv1",), rank=0, size=2)
    with pytest.raises(ConfigError, match="layer fc2: 5 outputs cannot be split over 6 workers; use at most 5"):
        HybridModel(model, ("fc2",), rank=0, size=6)
    with pytest.raises(ConfigError, match="every layer with parameters would be sharded"):
        HybridModel(network((), front=False), ("fc1",), rank=0, size=2)
    with pytest.raises(ConfigError, match=r"exchange\.fc_scheme 'waves': expected one of gather, turns, slices"):
        plan_passes("waves", 2, 4)  # type: ignore[arg-type]


def test_shards_are_not_updated_by_what_is_not_finite() -> None:
    case = Case(2, 4, (), "gather", ("fc1",))
    case.images[5] = np.inf

    def work(mover: MemoryMover) -> Recorder:
        hybrid = HybridModel(network(()), case.sharded, rank=mover.rank, size=2)
        parameters, gradients = np.zeros((2, hybrid.layout.elements), dtype=np.float32)
        hybrid.bind(parameters, gradients)
        hybrid.initialize(1)
        hybrid.initialize_shards(1)
        recorder = Recorder()
        hybrid.attach(mover, recorder, check_finite=True)
        mine = slice(mover.rank * 4, mover.rank * 4 + 4)
        with (
            np.errstate(all="ignore"),
            pytest.raises(RunError, match="gradients of fc1 are not finite at step 7"),
        ):
            hybrid.train(case.images[mine], case.targets[mine], context(mine.start), StepHooks())
        return recorder

    assert [recorder.gradients for recorder in MemoryNetwork(2).run(work)] == [{}, {}]
