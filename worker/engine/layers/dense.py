"""Fully connected layer, rectifier, flattening and dropout."""

from __future__ import annotations

import math
import zlib

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.core.model.layout import TensorSpec
from taihu.kernels.nn.elementwise import add_bias, column_sums, dropout, dropout_key, grains, relu, relu_gradient
from taihu.worker.engine.base.layer import (
    Array,
    Layer,
    ParameterLayer,
    Rectification,
    Run,
    Shape,
    check_initial,
    fill_normal,
    shape_error,
)
from taihu.worker.engine.layers.products import multiply, multiply_rows


class Linear(ParameterLayer):
    """y = x W + b with W (inputs, units); of sequences (time, inputs) every place for itself.

    Args:
        units: number of outputs.
        bias: whether there is a b.
        gain: the initial weights have the variance gain / inputs: 2 before a rectifier (He et al. 2015), 1 otherwise.
        deviation: of the initial weights, in place of what the gain gives.
        bias_value: of the initial biases.
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(
        self,
        units: int,
        *,
        bias: bool = True,
        gain: float = 2.0,
        deviation: float | None = None,
        bias_value: float = 0.0,
    ) -> None:
        super().__init__()
        if units < 1:
            raise ModelError(f"Linear: expected at least 1 unit, seen {units}")
        check_initial("Linear", gain, deviation)
        self._units, self._bias, self._gain = units, bias, gain
        self._deviation, self._bias_value = deviation, bias_value
        self._input = np.empty(0)

    @property
    def kind(self) -> str:
        """`fc`."""
        return "fc"

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(inputs,) -> (units,), or (time, inputs) -> (time, units)."""
        self.name = name
        if len(input_shape) not in {1, 2}:
            raise shape_error(name, "(features,)", input_shape, "put Flatten or GlobalAvgPool before Linear")
        bias = (TensorSpec("bias", (self._units,)),) if self._bias else ()
        self.tensors = (TensorSpec("weight", (input_shape[-1], self._units)), *bias)
        return (*input_shape[:-1], self._units)

    def fill(self, generator: np.random.Generator) -> None:
        """Normal weights of the variance gain / inputs, or of the deviation that was given; constant biases."""
        self._fill(generator, slice(None))

    def initialize_columns(self, seed: int, columns: slice) -> None:
        """Write the bound parameters, which are these columns alone: what `initialize` would write there."""
        if self.initial is not None:
            self.initial(self, columns)
        elif type(self).fill is Linear.fill:
            self._fill(self.generator(seed), columns)
        else:
            self._fill_whole(seed, columns)

    def _fill(self, generator: np.random.Generator, columns: slice) -> None:
        weight = self.parameters["weight"]
        usual = math.sqrt(self._gain / len(weight))
        deviation = usual if self._deviation is None else self._deviation
        fill_normal(weight, generator, deviation, columns=columns, of=self._units)
        if self._bias:
            self.parameters["bias"][...] = self._bias_value

    def _fill_whole(self, seed: int, columns: slice) -> None:
        """A subclass that fills in its own way knows of no columns."""
        own = self.parameters
        self.parameters = {each.name: np.empty(each.shape, own[each.name].dtype) for each in self.tensors}
        self.fill(self.generator(seed))
        for name, values in own.items():
            values[...] = self.parameters[name][..., columns]
        self.parameters = own

    def compute(self, x: Array, run: Run) -> Array:
        """One matrix product."""
        self._input = x
        y = self.workspace.take("output", (*x.shape[:-1], self._units), x.dtype)
        rows = y.reshape(-1, self._units)
        product = multiply if x.ndim == 2 else multiply_rows
        product(run.team, _rows(x), self.parameters["weight"], rows)
        if self._bias:
            add_bias(rows, self.parameters["bias"])
        return y

    def differentiate(self, dy: Array, run: Run) -> Array:
        """DW = x^T dy, db = column sums of dy, dx = dy W^T."""
        x, slopes = self._input, _rows(dy)
        multiply(run.team, _rows(x).T, slopes, self.gradients["weight"])
        if self._bias:
            sums = run.scratch.take("sums", (self._units,), np.float64)
            column_sums(slopes, sums)
            self.gradients["bias"][...] = sums
        if not self.needs_input_gradient:
            return x[:0]
        dx = self.workspace.take("input_gradient", x.shape, x.dtype)
        product = multiply if x.ndim == 2 else multiply_rows
        product(run.team, slopes, self.parameters["weight"].T, _rows(dx))
        return dx


def _rows(x: Array) -> Array:
    """(batch, features) or (batch, time, features) as rows of features."""
    return x.reshape(-1, x.shape[-1])


class ReLU(Layer):
    """y = max(x, 0)."""

    # Backward reads the signs of the output.
    gradient_is_free = True

    def __init__(self) -> None:
        super().__init__()
        self._output = np.empty(0)
        self._done: Rectification = "none"

    @property
    def holds_output(self) -> bool:
        """Whether it takes a buffer: not where it writes over its input, or the layer before it rectifies."""
        return not self.may_overwrite_input and self._done == "none"

    def follow(self, layer: Layer) -> None:
        """Leave rectifying to `layer`, if it can do it."""
        self._done = layer.rectification
        layer.rectify = self._done != "none"
        self.gradient_is_free = self._done != "step" or self.may_overwrite_gradient

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape, unchanged."""
        self.name = name
        return input_shape

    def forward(self, x: Array, run: Run) -> Array:
        """Rectify."""
        if self._done != "none":
            self._output = x
            return x
        y = x if self.may_overwrite_input else self.workspace.take("output", x.shape, x.dtype)
        run.team.run(relu, grains(x), x.reshape(-1), y.reshape(-1))
        self._output = y
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """Pass the gradient where the output is positive."""
        if self._done == "step":
            return dy
        dx = dy if self.may_overwrite_gradient else self.workspace.take("input_gradient", dy.shape, dy.dtype)
        run.team.run(relu_gradient, grains(dy), self._output.reshape(-1), dy.reshape(-1), dx.reshape(-1))
        return dx


class Flatten(Layer):
    """(H, W, C) -> (H * W * C,), a view."""

    def __init__(self) -> None:
        super().__init__()
        self._input_shape: Shape = ()

    @property
    def holds_output(self) -> bool:
        """Never: it returns a view."""
        return False

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape -> (elements,)."""
        self.name = name
        self._input_shape = input_shape
        return (math.prod(input_shape),)

    def forward(self, x: Array, run: Run) -> Array:
        """Drop the shape."""
        return x.reshape(len(x), -1)

    def backward(self, dy: Array, run: Run) -> Array:
        """Restore the shape."""
        return dy.reshape(len(dy), *self._input_shape)


class Dropout(Layer):
    """Zero elements with probability `rate` in training and scale the others by 1 / (1 - rate).

    The mask is a function of (seed, step, layer, sample of the global batch, element), so that one worker with the
    whole batch and many workers with its parts drop the same elements.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ModelError(f"Dropout: expected a rate of 0 or more and below 1, seen {rate}")
        self._rate = rate

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape, unchanged."""
        self.name = name
        return input_shape

    def forward(self, x: Array, run: Run) -> Array:
        """Drop elements in training; pass the input on otherwise."""
        return self._apply("output", x, run)

    def backward(self, dy: Array, run: Run) -> Array:
        """Drop the same elements of the gradient."""
        return self._apply("input_gradient", dy, run)

    def _apply(self, buffer: str, x: Array, run: Run) -> Array:
        context = run.context
        if not context.training:
            return x
        y = self.workspace.take(buffer, x.shape, x.dtype)
        key = dropout_key(context.seed, context.step, zlib.crc32(self.name.encode()))
        samples = context.samples
        if samples is None:
            samples = np.arange(context.first_sample, context.first_sample + len(x))
        dropout(x.reshape(len(x), -1), y.reshape(len(x), -1), self._rate, key, samples, context.first_element)
        return y
