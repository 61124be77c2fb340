"""A whole training step on the SW26010 model: the engine's results, and the times that were planned."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from taihu.core.base.errors import ModelError
from taihu.kernels.optim import SgdRule, sgd_momentum
from taihu.worker.engine import (
    Auxiliary,
    AvgPool2d,
    BatchNorm,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    MeanSquaredError,
    Model,
    ReLU,
    Residual,
    Run,
    Sequential,
    StepContext,
    StepHooks,
)
from taihu.worker.engine.models.loading import build_model
from taihu.worker.sw26010 import ProcessorModel, layer_times, modelled_step, step_seconds

_SHAPE = (32, 32, 3)


@dataclass
class _Step:
    """State left behind by a training step."""

    loss: float
    gradient: Any
    buffers: dict[str, Any]
    told: list[tuple[str, int]]


class _Bound:
    """A model with arenas and a batch, whose step can be run by the engine and on the processor."""

    def __init__(self, model: Model, shape: tuple[int, int, int], batch: int, classes: int = 10) -> None:
        self.model, self.shape, self.batch = model, shape, batch
        self.parameters = np.zeros(model.layout.elements, np.float32)
        self.gradient = np.zeros_like(self.parameters)
        model.bind(self.parameters, self.gradient)
        model.initialize(3)
        rng = np.random.default_rng(0)
        self.images = rng.standard_normal((batch, *shape)).astype(np.float32)
        self.labels = rng.integers(0, classes, batch)

    def train(self, by: Model | ProcessorModel) -> _Step:
        before = {name: buffer.copy() for name, buffer in self.model.buffers().items()}
        self.gradient[:] = np.nan
        told: list[tuple[str, int]] = []
        hooks = StepHooks(
            before_layer=lambda layer: told.append(("read", layer)),
            forwarded=lambda loss: told.append(("forwarded", 0)),
            before_backward=lambda layer: told.append(("backward", layer)),
            gradient_ready=lambda layer: told.append(("ready", layer)),
        )
        loss = by.train(self.images, self.labels, StepContext(True, 5, 2, 8), hooks)
        buffers = {name: buffer.copy() for name, buffer in self.model.buffers().items()}
        self.model.load_buffers(before)
        return _Step(loss, self.gradient.copy(), buffers, told)


def _assert_same_within_rounding(processor: _Step, engine: _Step) -> None:
    assert processor.loss == pytest.approx(engine.loss, rel=1e-5)
    assert np.linalg.norm(processor.gradient - engine.gradient) < 2e-5 * np.linalg.norm(engine.gradient)
    assert processor.buffers.keys() == engine.buffers.keys()
    for name, buffer in engine.buffers.items():
        np.testing.assert_allclose(processor.buffers[name], buffer, rtol=1e-5, atol=1e-6)
    assert processor.told == engine.told


def test_a_step_of_resnet20_has_the_engines_results_and_takes_the_planned_time() -> None:
    bound = _Bound(build_model("resnet20", _SHAPE, 10), _SHAPE, 4)
    engine = bound.train(bound.model)
    on_processor = ProcessorModel(bound.model, core_groups=4)
    processor = bound.train(on_processor)
    _assert_same_within_rounding(processor, engine)
    planned = layer_times(bound.model, _SHAPE, 4, core_groups=4)
    assert on_processor.layer_times() == planned
    assert sum(layer.kind == "conv" for layer in planned) == 19

    rule = SgdRule(1.0, 0.1, 1e-4, 0.9, False)
    updated, moved = bound.parameters.copy(), np.ones_like(bound.parameters)
    sgd_momentum(updated, processor.gradient, moved, rule)
    velocity = np.ones_like(bound.parameters)
    update = on_processor.update(bound.parameters, processor.gradient, velocity, rule)
    assert np.array_equal(bound.parameters, updated)
    assert np.array_equal(velocity, moved)
    spent = sum(layer.forward_seconds + layer.backward_seconds for layer in planned)
    assert step_seconds(bound.model, _SHAPE, 4) == pytest.approx(spent + update.seconds)


def test_all_other_layers_have_the_engines_results() -> None:
    layers = [
        Conv2d(6, 3, 2, padding=1, groups=3),
        MaxPool2d(3, 2, 1, ceil_mode=True),
        ReLU(),
        Conv2d(8, 1, groups=2),
        AvgPool2d(2, 1),
        BatchNorm(),
        Flatten(),
        Dropout(0.4),
        Linear(12, bias=False),
        Linear(10),
    ]
    bound = _Bound(Model(Sequential(layers), (11, 9, 3), 10), (11, 9, 3), 6)
    engine = bound.train(bound.model)
    on_processor = ProcessorModel(bound.model, core_groups=2)
    _assert_same_within_rounding(bound.train(on_processor), engine)
    assert on_processor.layer_times() == layer_times(bound.model, (11, 9, 3), 6, core_groups=2)


def test_branches_and_auxiliary_classifiers_have_the_engines_results() -> None:
    head = Sequential([AvgPool2d(2), Conv2d(4, 1), Flatten(), Linear(10)])
    branches = [Conv2d(8, 1), Sequential([Conv2d(4, 1), ReLU(), Conv2d(8, 3, padding=1)]), MaxPool2d(3, 1, 1)]
    layers = [Conv2d(6, 3), LocalResponseNorm(), Auxiliary(head, 0.5), Concat(branches), GlobalAvgPool(), Linear(10)]
    bound = _Bound(Model(Sequential(layers), (9, 9, 3), 10), (9, 9, 3), 6)
    engine = bound.train(bound.model)
    on_processor = ProcessorModel(bound.model, core_groups=2)
    _assert_same_within_rounding(bound.train(on_processor), engine)
    assert on_processor.layer_times() == layer_times(bound.model, (9, 9, 3), 6, core_groups=2)


def test_the_loss_is_the_models() -> None:
    bound = _Bound(Model(Sequential([Flatten(), Linear(3)]), (2, 2, 1), 3), (2, 2, 1), 4)
    bound.model.use_loss(MeanSquaredError())
    bound.labels = np.random.default_rng(1).random((4, 3)).astype(np.float32)
    _assert_same_within_rounding(bound.train(ProcessorModel(bound.model)), bound.train(bound.model))


def test_the_loss_is_scaled_as_the_engine_scales_it() -> None:
    bound = _Bound(build_model("small_cnn", (8, 8, 1), 10), (8, 8, 1), 4)
    on_processor = ProcessorModel(bound.model)
    context = StepContext(True, 5, 2, 8)
    on_processor.train(bound.images, bound.labels, context, StepHooks())
    unscaled = bound.gradient.copy()
    on_processor.train(bound.images, bound.labels, context, StepHooks(loss_scale=lambda: 1024.0))
    assert np.array_equal(bound.gradient, 1024.0 * unscaled)


def _with_shortcut_first() -> Model:
    body = Sequential([Conv2d(6, 3, padding="same"), BatchNorm(), ReLU()])
    block = Residual(body, Conv2d(6, 1))
    return Model(Sequential([MaxPool2d(2), Sequential([ReLU(), block]), GlobalAvgPool(), Linear(10)]), (8, 8, 3), 10)


@pytest.mark.parametrize("name", ["resnet20", "first"])
def test_backward_is_divided_as_a_worker_measures_it(name: str) -> None:
    model = _with_shortcut_first() if name == "first" else build_model("resnet20", _SHAPE, 10)
    shape = (8, 8, 3) if name == "first" else _SHAPE
    bound = _Bound(model, shape, 2)
    on_processor = ProcessorModel(model, core_groups=3)
    spent = [0.0]

    def ready(layer: int) -> None:
        spent.append(sum(each.backward_seconds for each in on_processor.layer_times()))

    context = StepContext(True, 0, 0, 0)
    on_processor.train(bound.images, bound.labels, context, StepHooks(gradient_ready=ready))
    times = on_processor.layer_times()
    assert times == layer_times(model, shape, 2, core_groups=3)
    step = modelled_step(model, shape, 2, core_groups=3)
    expected = [stop - start for start, stop in pairwise(spent)]
    expected[-1] += sum(each.backward_seconds for each in times) - spent[-1]
    assert step.backward_seconds == pytest.approx(expected, abs=1e-15)
    assert step.forward_seconds == pytest.approx(sum(each.forward_seconds for each in times))


def test_more_core_groups_take_less_time_and_more_images_more() -> None:
    model = build_model("resnet20", _SHAPE, 10)
    by_groups = [step_seconds(model, _SHAPE, 64, groups) for groups in (1, 2, 4)]
    assert by_groups == sorted(by_groups, reverse=True)
    assert 2 < by_groups[0] / by_groups[2] <= 4
    by_batch = [step_seconds(model, _SHAPE, batch) for batch in (16, 64, 256)]
    assert by_batch == sorted(by_batch)
    # Small batches leave parts of the machine idle: four times the images take less than four times as long.
    assert by_batch[1] < 4 * by_batch[0]


def test_layers_without_a_model_are_named() -> None:
    class Mystery(Layer):
        def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
            self.name = name
            return input_shape

        def forward(self, x: Any, run: Run) -> Any:
            return x

        def backward(self, dy: Any, run: Run) -> Any:
            return dy

    model = Model(Sequential([Flatten(), Mystery(), Linear(10)]), _SHAPE, 10)
    with pytest.raises(ModelError, match="mystery1: the SW26010 model has no such layer"):
        layer_times(model, _SHAPE, 1)
