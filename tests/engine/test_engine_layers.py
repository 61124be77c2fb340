"""Layers against their definitions, and the shapes and arguments that they refuse."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import DataError, ModelError
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
    ReLU,
    Residual,
    Run,
    Sequential,
    StepContext,
    softmax_cross_entropy,
)
from taihu.worker.engine.layers import convolution
from taihu.worker.engine.layers.products import even_side

_TRAINING = StepContext(training=True, seed=0, step=0, first_sample=0)
_EVALUATION = StepContext(training=False, seed=0, step=0, first_sample=0)


def _bound(layer: Layer, shape: tuple[int, int, int], dtype: Any = np.float32) -> tuple[Model, NDArray[Any]]:
    """A model of the layer alone, its output flattened, and its gradient arena."""
    outputs = int(np.prod(layer.build("", shape)))
    model = Model(Sequential([layer, Flatten()]), shape, outputs)
    parameters, gradients = (np.zeros(model.layout.elements, dtype) for _ in range(2))
    model.bind(parameters, gradients)
    model.initialize(0)
    parameters[...] += np.random.default_rng(1).standard_normal(model.layout.elements)
    return model, gradients


def _convolve(x: NDArray[Any], weight: NDArray[Any], stride: int, padding: int, groups: int) -> NDArray[Any]:
    """The definition of a grouped convolution, one product at a time."""
    batch, height, width, channels = x.shape
    size, _, depth, filters = weight.shape
    positions = [(side + 2 * padding - size) // stride + 1 for side in (height, width)]
    y = np.zeros((batch, *positions, filters))
    for b, oh, ow, f, kh, kw, c in np.ndindex(batch, *positions, filters, size, size, depth):
        ih, iw = oh * stride - padding + kh, ow * stride - padding + kw
        if 0 <= ih < height and 0 <= iw < width:
            channel = f // (filters // groups) * (channels // groups) + c
            y[b, oh, ow, f] += x[b, ih, iw, channel] * weight[kh, kw, c, f]
    return y


@settings(deadline=None, max_examples=25)
@given(st.data(), st.integers(0, 9))
def test_convolution_follows_its_definition(data: st.DataObject, seed: int) -> None:
    groups, kernel, stride = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    padding = data.draw(st.integers(0, 2))
    height, width = data.draw(st.integers(kernel, 6)), data.draw(st.integers(kernel, 6))
    filters, channels = groups * data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 2))
    model, _ = _bound(Conv2d(filters, kernel, stride, padding, groups=groups), (height, width, channels))
    x = np.random.default_rng(seed).standard_normal((2, height, width, channels)).astype(np.float32)
    weight, bias = model.parameters_by_name().values()
    expected = _convolve(x, weight, stride, padding, groups) + bias
    np.testing.assert_allclose(model.forward(x, _TRAINING), expected.reshape(2, -1), rtol=1e-4, atol=1e-5)


def test_a_convolution_in_many_blocks_is_the_sum_over_samples() -> None:
    shape = (24, 24, 16)  # a block holds the columns of three samples
    model, gradients = _bound(Conv2d(8, 3, padding="same"), shape, np.float64)
    generator = np.random.default_rng(0)
    x, dy = generator.standard_normal((5, *shape)), generator.standard_normal((5, 24 * 24 * 8))
    y = model.forward(x, _TRAINING).copy()
    model.backward(dy)
    total = gradients.copy()
    single = np.zeros_like(total)
    for i in range(5):
        np.testing.assert_allclose(model.forward(x[i : i + 1], _TRAINING)[0], y[i], rtol=1e-12, atol=1e-12)
        model.backward(dy[i : i + 1])
        single += gradients
    np.testing.assert_allclose(total, single, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("stride", "filters"), [(1, 5), (2, 5), (3, 200), (2, 200)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_of_one_pixel_is_a_product_of_matrices(
    stride: int, filters: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By BLAS or as tiles: with a bias, and with a layer before it that gets the gradient of its input."""
    shape, generator = (7, 9, 3), np.random.default_rng(stride)
    x = generator.standard_normal((40, *shape))
    seen = []
    for products_from in (1, 1 << 30):
        monkeypatch.setattr(convolution, "_PRODUCT_FROM", products_from)
        layers = Sequential([Conv2d(150, 3, padding=1), Conv2d(filters, 1, stride), Flatten()])
        outputs = -(-7 // stride) * -(-9 // stride) * filters
        model = Model(layers, shape, outputs)
        model.use_threads(threads)
        parameters, gradients = (np.zeros(model.layout.elements) for _ in range(2))
        model.bind(parameters, gradients)
        model.initialize(0)
        parameters += 0.1
        y = model.forward(x, _TRAINING).copy()
        model.backward(np.random.default_rng(7).standard_normal(y.shape))
        seen.append((y, gradients))
    for product, tiles in zip(*seen, strict=True):
        np.testing.assert_allclose(product, tiles, rtol=1e-10, atol=1e-10)


def test_few_blocks_of_a_product_are_as_many_for_either_of_two_threads() -> None:
    for length in (*range(17, 1100), 1568, 2048, 6272, 25088):
        side = even_side(length)
        assert side <= 512
        assert -(-length // side) % 2 == 0 or length > 16_384
    assert [-(-length // even_side(length)) for length in (64, 392, 1024, 1568, 2048)] == [2, 2, 2, 4, 4]


def test_same_padding_keeps_ceil_of_the_input_over_the_stride() -> None:
    for side in range(1, 9):
        for stride in (1, 2, 3):
            for kernel in (1, 3, 5):
                shape = Conv2d(2, kernel, stride, "same").build("conv", (side, side, 1))
                assert shape == (-(-side // stride), -(-side // stride), 2)


@pytest.mark.parametrize("pool", [MaxPool2d, AvgPool2d])
def test_ceil_mode_adds_the_window_over_the_edge(pool: type[MaxPool2d] | type[AvgPool2d]) -> None:
    sides = [(32, 16, 15), (16, 8, 7), (8, 4, 3), (7, 3, 3), (3, 1, 1)]
    for side, with_edge, without in sides:
        assert pool(3, 2, ceil_mode=True).build("pool", (side, side, 4)) == (with_edge, with_edge, 4)
        assert pool(3, 2).build("pool", (side, side, 4)) == (without, without, 4)
    # A window that would start behind the image is no window.
    assert pool(1, 3, ceil_mode=True).build("pool", (5, 5, 1)) == (2, 2, 1)


def test_average_pooling_counts_the_pixels_inside_of_the_image() -> None:
    model, _ = _bound(Sequential([AvgPool2d(3, 2, 1, ceil_mode=True), Identity()]), (4, 4, 1))
    y = model.forward(np.ones((1, 4, 4, 1), np.float32), _EVALUATION)
    assert np.array_equal(y, np.ones((1, 9), np.float32))


class Identity(Layer):
    """A user's layer without parameters: the identity."""

    def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        self.name = name
        return input_shape

    def forward(self, x: NDArray[Any], run: Run) -> NDArray[Any]:
        return x

    def backward(self, dy: NDArray[Any], run: Run) -> NDArray[Any]:
        return dy


def test_batch_norm_normalises_in_training_and_uses_running_moments_in_evaluation() -> None:
    shape = (3, 2, 4)
    model, _ = _bound(BatchNorm(momentum=0.8, epsilon=1e-3), shape)
    scale, shift = model.parameters_by_name().values()
    generator = np.random.default_rng(0)
    running_mean, running_variance = np.zeros(4), np.ones(4)
    for step in range(4):
        x = (generator.standard_normal((5, *shape)) * 3 + step).astype(np.float32)
        rows = x.reshape(-1, 4).astype(np.float64)
        expected = (x - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3) * scale + shift
        y = model.forward(x, _TRAINING)
        np.testing.assert_allclose(y, expected.reshape(5, -1), rtol=1e-4, atol=1e-5)
        running_mean = 0.8 * running_mean + 0.2 * rows.mean(0)
        running_variance = 0.8 * running_variance + 0.2 * rows.var(0, ddof=1)
    np.testing.assert_allclose(model.buffers()["norm1/running_mean"], running_mean, rtol=1e-5)
    np.testing.assert_allclose(model.buffers()["norm1/running_variance"], running_variance, rtol=1e-5)
    x = generator.standard_normal((1, *shape)).astype(np.float32)
    expected = (x - running_mean) / np.sqrt(running_variance + 1e-3) * scale + shift
    np.testing.assert_allclose(model.forward(x, _EVALUATION), expected.reshape(1, -1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.buffers()["norm1/running_mean"], running_mean, rtol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000), st.integers(0, 1000))
def test_dropout_of_parts_equals_dropout_of_the_global_batch(workers: int, batch: int, seed: int, step: int) -> None:
    shape = (3, 2, 2)
    model, _ = _bound(Sequential([Dropout(0.5), Flatten(), Dropout(0.3)]), shape)
    images = np.random.default_rng(0).standard_normal((workers * batch, *shape)).astype(np.float32)
    whole = model.forward(images, StepContext(True, seed, step, 0)).copy()
    for rank in range(workers):
        part = slice(rank * batch, (rank + 1) * batch)
        y = model.forward(images[part], StepContext(True, seed, step, rank * batch))
        assert np.array_equal(y, whole[part])
    assert np.array_equal(model.forward(images, _EVALUATION), images.reshape(len(images), -1))


def test_relu_in_place_leaves_what_others_still_read() -> None:
    images = np.random.default_rng(0).standard_normal((2, 3, 3, 2)).astype(np.float32)
    model, _ = _bound(Sequential([ReLU(), Residual(Sequential([ReLU(), Identity()])), Residual(ReLU())]), (3, 3, 2))
    kept = images.copy()
    y = model.forward(images, _TRAINING)
    assert np.array_equal(images, kept)
    assert np.array_equal(y, 4 * np.maximum(images, 0).reshape(2, -1))


def test_a_loss_refuses_labels_that_do_not_fit() -> None:
    logits = np.zeros((2, 3), np.float32)
    with pytest.raises(DataError, match="expected labels of 0 to 2, seen 0 to 3"):
        softmax_cross_entropy(logits, np.array([0, 3]))
    with pytest.raises(DataError, match="expected labels of 0 to 2, seen -1 to 0"):
        softmax_cross_entropy(logits, np.array([0, -1]))
    with pytest.raises(DataError, match=re.escape("2 samples of a batch, seen int64 of shape (3,)")):
        softmax_cross_entropy(logits, np.array([0, 1, 2]))
    with pytest.raises(DataError, match="seen float64"):
        softmax_cross_entropy(logits, np.array([0.0, 1.0]))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (lambda: [Flatten(), Conv2d(4, 3)], "conv1: expected an input of (height, width, channels), seen (32,)"),
        (
            lambda: [Conv2d(4, 5)],
            "conv1: expected an input of at least 5 x 5 pixels for a 5 x 5 kernel, seen (4, 4, 2)",
        ),
        (
            lambda: [Conv2d(6, 1, groups=3)],
            "conv1: expected an input of channels divisible by groups=3, seen (4, 4, 2)",
        ),
        (lambda: [Linear(3)], "fc1: expected an input of (features,), seen (4, 4, 2); put Flatten"),
        (lambda: [MaxPool2d(5)], "pool1: expected an input of at least 5 x 5 pixels, seen (4, 4, 2)"),
        (lambda: [Flatten(), AvgPool2d(2)], "pool1: expected an input of (height, width, channels), seen (32,)"),
        (lambda: [Flatten(), GlobalAvgPool()], "pool1: expected an input of (height, width, channels), seen (32,)"),
        (lambda: [PaddedShortcut(1)], "expected an input of (height, width, at most 1 channels), seen (4, 4, 2)"),
        (
            lambda: [Residual(Conv2d(3, 1)), Conv2d(4, 9)],
            "residual1: expected the same shape from body and shortcut, seen (4, 4, 3) and (4, 4, 2)",
        ),
        (
            lambda: [ReLU(), Residual(Sequential([Conv2d(2, 1), Conv2d(2, 7)]))],
            "residual1.body.conv2: expected an input of at least 7 x 7 pixels",
        ),
        (lambda: [Flatten(), Linear(4)], "model: expected an output of (3,) for 3 classes or values, seen (4,)"),
        (lambda: [GlobalAvgPool(), *[Linear(3)] * 2], "a layer object occurs twice"),
        (list, "Sequential: expected at least one layer"),
        (lambda: [Flatten], "Sequential: expected layers, seen ABCMeta"),
        (lambda: [Linear(0)], "Linear: expected at least 1 unit, seen 0"),
        (lambda: [Conv2d(4, 3, groups=3)], "groups that divide the filters, seen filters=4, kernel=3"),
        (lambda: [Conv2d(4, 2, padding="same")], 'padding="same" needs an odd kernel, seen 2'),
        (lambda: [Conv2d(4, 2, padding=-1)], "padding"),
        (lambda: [MaxPool2d(2, padding=2)], "a padding of 0 to kernel - 1, seen kernel=2, stride=None, padding=2"),
        (lambda: [Dropout(1.0)], "Dropout: expected a rate of 0 or more and below 1, seen 1.0"),
    ],
)
def test_what_does_not_fit_is_refused_with_names_and_shapes(layers: Callable[[], Any], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        Model(Sequential(layers()), (4, 4, 2), 3)
    assert "\n" not in str(caught.value)
