"""Every layer against central differences in float64, over parameters and inputs alike."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

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
    StepContext,
    softmax_cross_entropy,
)

_CONTEXT = StepContext(training=True, seed=5, step=3, first_sample=7)
_EXAMPLES = settings(deadline=None, max_examples=25)
_SEEDS = st.integers(0, 99)
_IMAGES = st.tuples(st.integers(3, 6), st.integers(3, 6), st.integers(1, 4))


class Input(ParameterLayer):
    """Returns its parameter instead of its input, so that the gradient of an input lands in the arena.

    The values are distinct and no difference step from zero or from each other: no maximum or rectifier flips.
    """

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = batch

    def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        self.name = name
        self.tensors = (TensorSpec("values", (self._batch, *input_shape)),)
        return input_shape

    def fill(self, generator: np.random.Generator) -> None:
        values = self.parameters["values"]
        values[...] = (generator.permutation(values.size).reshape(values.shape) + 0.3) / values.size * 4 - 2

    def compute(self, x: NDArray[Any], run: Run) -> NDArray[Any]:
        return self.parameters["values"]

    def differentiate(self, dy: NDArray[Any], run: Run) -> NDArray[Any]:
        self.gradients["values"][...] = dy
        return dy


def _bound(root: Layer, shape: tuple[int, int, int], classes: int, seed: int) -> tuple[Model, Any, Any]:
    model = Model(root, shape, classes)
    parameters, gradients = (np.full(model.layout.elements, np.nan) for _ in range(2))
    model.bind(parameters, gradients)
    model.initialize(seed)
    for name, parameter in model.parameters_by_name().items():
        if not name.endswith("/values"):  # zero biases and unit scales would hide mistakes
            np.add(parameter, 0.3 * np.random.default_rng(seed).standard_normal(parameter.shape), out=parameter)
    return model, parameters, gradients


def _assert_derivative(loss: Callable[[], float], parameters: NDArray[Any], gradients: NDArray[Any]) -> None:
    step = 1e-6
    numeric = np.empty_like(gradients)
    for i in range(parameters.size):
        value = parameters[i]
        parameters[i] = value + step
        above = loss()
        parameters[i] = value - step
        numeric[i] = (above - loss()) / (2 * step)
        parameters[i] = value
    scale = max(1.0, np.abs(numeric).max())
    np.testing.assert_allclose(gradients / scale, numeric / scale, rtol=0, atol=2e-8)


def _check(layer: Layer, shape: tuple[int, int, int], seed: int, batch: int = 2) -> None:
    elements = int(np.prod(layer.build("", shape)))
    model, parameters, gradients = _bound(Sequential([Input(batch), layer, Flatten()]), shape, elements, seed)
    images = np.zeros((batch, *shape))
    weights = np.random.default_rng(seed).standard_normal((batch, elements))

    def loss() -> float:
        return float(np.vdot(weights, model.forward(images, _CONTEXT)))

    loss()
    model.backward(weights)
    _assert_derivative(loss, parameters, gradients)


@_EXAMPLES
@given(st.data(), _SEEDS)
def test_convolution(data: st.DataObject, seed: int) -> None:
    groups = data.draw(st.integers(1, 3))
    kernel, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    paddings: list[int | Literal["same"]] = [0, 1, 2]
    padding = data.draw(st.sampled_from([*paddings, "same"] if kernel % 2 else paddings))
    height, width = data.draw(st.integers(kernel, 6)), data.draw(st.integers(kernel, 6))
    channels, filters = groups * data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 2))
    layer = Conv2d(filters, kernel, stride, padding, bias=data.draw(st.booleans()), groups=groups)
    _check(layer, (height, width, channels), seed)


@_EXAMPLES
@given(st.data(), st.sampled_from([MaxPool2d, AvgPool2d]), _SEEDS)
def test_pooling(data: st.DataObject, pool: type[MaxPool2d] | type[AvgPool2d], seed: int) -> None:
    kernel = data.draw(st.integers(1, 3))
    stride, padding = data.draw(st.integers(1, 4)), data.draw(st.integers(0, kernel - 1))
    _check(pool(kernel, stride, padding, ceil_mode=data.draw(st.booleans())), data.draw(_IMAGES), seed)


@_EXAMPLES
@given(_IMAGES, st.integers(1, 4), _SEEDS)
def test_batch_norm(shape: tuple[int, int, int], batch: int, seed: int) -> None:
    _check(BatchNorm(), shape, seed, batch)


@_EXAMPLES
@given(_IMAGES, st.integers(1, 5), st.booleans(), _SEEDS)
def test_linear_and_flatten(shape: tuple[int, int, int], units: int, bias: bool, seed: int) -> None:
    _check(Sequential([Flatten(), Linear(units, bias=bias)]), shape, seed)


@_EXAMPLES
@given(_IMAGES, st.sampled_from([ReLU, GlobalAvgPool, lambda: Dropout(0.4)]), _SEEDS)
def test_layers_without_parameters(shape: tuple[int, int, int], make: Callable[[], Layer], seed: int) -> None:
    _check(make(), shape, seed)


@_EXAMPLES
@given(_IMAGES, st.integers(0, 2), st.integers(1, 3), _SEEDS)
def test_padded_shortcut(shape: tuple[int, int, int], more: int, stride: int, seed: int) -> None:
    _check(PaddedShortcut(shape[2] + more, stride), shape, seed)


# Not random: a rectified convolution may by bad luck lie within one difference step of zero.
@settings(_EXAMPLES, derandomize=True)
@given(_IMAGES, st.sampled_from(["identity", "projection", "padded"]), st.booleans(), _SEEDS)
def test_residual(shape: tuple[int, int, int], shortcut: str, rectifier_first: bool, seed: int) -> None:
    filters, stride = (shape[2], 1) if shortcut == "identity" else (shape[2] + 1, 2)
    first: list[Layer] = [ReLU()] if rectifier_first else []
    body = Sequential([*first, Conv2d(filters, 3, stride, padding=1), ReLU()])
    branches = {
        "identity": lambda: Residual(body),
        "projection": lambda: Residual(body, Conv2d(filters, 1, stride, bias=False)),
        "padded": lambda: Residual(body, PaddedShortcut(filters, stride)),
    }
    _check(Sequential([branches[shortcut](), ReLU()]), shape, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_whole_network_with_its_loss(seed: int) -> None:
    block = Residual(Sequential([Conv2d(4, 3, padding="same", bias=False), BatchNorm(), ReLU()]))
    layers = [Conv2d(4, 3), BatchNorm(), ReLU(), block, ReLU(), MaxPool2d(2), Dropout(0.2), Flatten(), Linear(3)]
    shape = (7, 6, 2)
    model, parameters, gradients = _bound(Sequential(layers), shape, 3, seed)
    generator = np.random.default_rng(seed)
    images, labels = generator.standard_normal((4, *shape)), generator.integers(0, 3, 4)

    def loss() -> float:
        return softmax_cross_entropy(model.forward(images, _CONTEXT), labels)[0]

    model.backward(softmax_cross_entropy(model.forward(images, _CONTEXT), labels)[1])
    _assert_derivative(loss, parameters, gradients)
