"""The check of layers finds each mistake that a layer of one's own can have, and nothing in those of the engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taihu.core.base.errors import ModelError
from taihu.core.model.layout import TensorSpec
from taihu.worker.engine import (
    AvgPool2d,
    BatchNorm,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    MaxPool2d,
    Model,
    PaddedShortcut,
    ParameterLayer,
    ReLU,
    Residual,
    Run,
    Sequential,
    build_model,
    check_gradients,
)
from taihu.worker.engine.model_check import CheckedModel

Array = NDArray[Any]
SHAPE = (4, 5, 2)


class Scale(ParameterLayer):
    """y = (x * factor + shift)^2 with a factor and a shift for each channel."""

    output_is_free = True

    def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        self.name = name
        self.tensors = (TensorSpec("factor", input_shape[-1:]), TensorSpec("shift", input_shape[-1:]))
        return input_shape

    def fill(self, generator: np.random.Generator) -> None:
        self.parameters["factor"][...] = 1
        self.parameters["shift"][...] = 0

    def compute(self, x: Array, run: Run) -> Array:
        self._input = x
        y = self.workspace.take("output", x.shape, x.dtype)
        np.square(self._line(x), out=y)
        return y

    def _line(self, x: Array) -> Array:
        line: Array = x * self.parameters["factor"] + self.parameters["shift"]
        return line

    def differentiate(self, dy: Array, run: Run) -> Array:
        dline = 2 * dy * self._line(self._input)
        axes = tuple(range(dy.ndim - 1))
        self.gradients["factor"][...] = (dline * self._input).sum(axis=axes)
        self.gradients["shift"][...] = dline.sum(axis=axes)
        return dline * self.parameters["factor"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Conv2d(4, 3, 2, padding=1, groups=2),
        lambda: Residual(Sequential([Conv2d(2, 3, padding=1, bias=False), BatchNorm(), ReLU()])),
        lambda: PaddedShortcut(3, 2),
        lambda: MaxPool2d(3, 2, ceil_mode=True),
        lambda: AvgPool2d(2),
        lambda: Dropout(0.3),
        lambda: Sequential([GlobalAvgPool(), Linear(3)]),
        Flatten,
        ReLU,
        BatchNorm,
        Scale,
    ],
)
def test_right_layers_pass(make: Callable[[], Layer]) -> None:
    check_gradients(make(), SHAPE)


def test_rows_of_features_pass() -> None:
    check_gradients(Sequential([Linear(7), ReLU(), Scale()]), (5,))


class WrongScale(Scale):
    """The gradient of one element is wrong."""

    def differentiate(self, dy: Array, run: Run) -> Array:
        dx = super().differentiate(dy, run)
        self.gradients["shift"][1] *= 2
        return dx


class WrongInput(Scale):
    def differentiate(self, dy: Array, run: Run) -> Array:
        dx: Array = super().differentiate(dy, run) * 1.001
        return dx


class Adds(Scale):
    def differentiate(self, dy: Array, run: Run) -> Array:
        before = self.gradients["shift"].copy()
        dx = super().differentiate(dy, run)
        self.gradients["shift"] += before
        return dx


class WritesInput(Scale):
    def compute(self, x: Array, run: Run) -> Array:
        x += 1
        return super().compute(x, run)


class WritesGradient(Scale):
    def differentiate(self, dy: Array, run: Run) -> Array:
        dx = super().differentiate(dy, run)
        dy[...] = dx
        return dx


class MixesSamples(Scale):
    def compute(self, x: Array, run: Run) -> Array:
        return super().compute(x - x.mean(axis=0), run)


class Counts(Scale):
    calls = 0

    def compute(self, x: Array, run: Run) -> Array:
        self.calls += 1
        y: Array = super().compute(x, run) + self.calls
        return y


class Recounts(Scale):
    def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        self._count = np.zeros(1)
        return super().build(name, input_shape)

    def buffers(self) -> dict[str, Array]:
        return {"count": self._count}

    def compute(self, x: Array, run: Run) -> Array:
        self._count += 1
        return super().compute(x, run)


class Narrow(Scale):
    def compute(self, x: Array, run: Run) -> Array:
        return super().compute(x, run).astype(np.float32)


class Wide(Scale):
    def compute(self, x: Array, run: Run) -> Array:
        return super().compute(x, run).astype(np.float64)


class ReadsOutput(Scale):
    def compute(self, x: Array, run: Run) -> Array:
        self._output = super().compute(x, run)
        return self._output

    def differentiate(self, dy: Array, run: Run) -> Array:
        dx: Array = super().differentiate(dy, run) + 0 * self._output
        return dx


class ForgetsOverwritten(Scale):
    def compute(self, x: Array, run: Run) -> Array:
        y = super().compute(x, run)
        if self.may_overwrite_input:
            x[...] = y
            return x
        return y


class Unfilled(Scale):
    def fill(self, generator: np.random.Generator) -> None:
        self.parameters["factor"][...] = 1


class Unannounced(Scale):
    def forward(self, x: Array, run: Run) -> Array:
        return self.compute(x, run)


class WrongShape(Scale):
    def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*super().build(name, input_shape), 1)


class Nameless(Scale):
    def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return super().build("", input_shape)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (WrongScale(), r"wrongscale1: gradient of shift\[1\]: expected (\S+) by central differences, seen (\S+)"),
        (WrongInput(), r"gradient of the input\[\d, \d, \d, \d\]: expected"),
        (Adds(), r"adds1: gradient of shift\[0\]: expected a finite value in the place of what was there, seen nan"),
        (WritesInput(), r"forward: expected its input left alone, seen it written at \[0, 0, 0, 0\]"),
        (WritesGradient(), r"backward: expected the gradient it gets left alone"),
        (MixesSamples(), r"gradient of the input|forward in evaluation"),
        (
            Counts(),
            r"expected the same output for the same batch and step, seen \S+ instead of \S+ at \[0",
        ),
        (Recounts(), r"forward with run.recompute: expected recounts1/count left alone, seen it changed"),
        (Narrow(), r"forward: expected the dtype of the input, float64, seen float32"),
        (Wide(), r"forward: expected float32 for inputs of float32, seen float64"),
        (ReadsOutput(), r"output_is_free: expected a backward that does not read the output"),
        (ForgetsOverwritten(), r"may_overwrite_input: expected the same results where it is set"),
        (Unfilled(), r"fill: expected finite values in all of factor, shift"),
        (Unannounced(), r"forward: expected that it calls run.before_layer once; write compute, not forward"),
        (WrongShape(), r"forward: expected an output of \(3, 4, 5, 2, 1\), as build said, seen \(3, 4, 5, 2\)"),
        (Nameless(), r"build: expected that it sets self.name, seen ''"),
    ],
)
def test_a_wrong_layer_is_told_what_is_wrong(layer: Layer, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        check_gradients(layer, SHAPE)
    assert "\n" not in str(caught.value)


def test_the_gradient_that_is_told_is_the_true_one() -> None:
    with pytest.raises(ModelError) as caught:
        check_gradients(WrongScale(), SHAPE)
    found = re.search(r"expected (\S+) by central differences, seen (\S+)", str(caught.value))
    assert found is not None
    assert float(found[2]) == pytest.approx(2 * float(found[1]), rel=1e-4)


def test_samples_that_mix_are_found_where_their_gradient_is_right() -> None:
    class Centred(Layer):
        def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
            self.name = name
            return input_shape

        def forward(self, x: Array, run: Run) -> Array:
            y: Array = x - x.mean(axis=0)
            return y

        def backward(self, dy: Array, run: Run) -> Array:
            dx: Array = dy - dy.mean(axis=0)
            return dx

    with pytest.raises(ModelError, match="centred1: forward in evaluation: expected sample 0 not to depend on the"):
        check_gradients(Centred(), (3,))


def test_whole_models() -> None:
    check_gradients(build_model("small_cnn", (6, 6, 1), 3))
    with pytest.raises(ModelError, match=r"wrongscale1: gradient of shift\[1\]: expected"):
        check_gradients(Model(Sequential([Linear(2), WrongScale()]), (4,), 2))
    with pytest.raises(ModelError, match="expected the shape of one input of the layer"):
        check_gradients(ReLU())


def test_a_model_is_taken_apart_layer_by_layer() -> None:
    def make() -> Layer:
        return Sequential(
            [Residual(Sequential([Conv2d(2, 3, padding=1), ReLU()])), Flatten(), WrongScale(), Linear(3)]
        )

    checked = CheckedModel(make, SHAPE, 3)
    places = [(layer.name, layer.kind, layer.output_shape, layer.parameters) for layer in checked.layers]
    assert places == [
        ("residual1.body.conv1", "conv", SHAPE, 3 * 3 * 2 * 2 + 2),
        ("residual1.body.relu1", "relu", SHAPE, 0),
        ("flatten1", "flatten", (40,), 0),
        ("wrongscale1", "wrongscale", (40,), 80),
        ("fc1", "fc", (3,), 40 * 3 + 3),
    ]
