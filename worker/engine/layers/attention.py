"""Causal self-attention of several heads (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import math

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.kernels.nn.attention import causal_softmax, causal_softmax_gradient
from taihu.worker.engine.base.layer import Array, Layer, Run, Shape, shape_error


class CausalAttention(Layer):
    """y = softmax(q k^T / sqrt(d)) v for each head, where every place sees itself and those before it.

    The features of its input are queries, keys and values of all heads: of a place 3 x heads x d values, as a
    `Linear` with three times the width makes them. Heads lie side by side in the output.

    Args:
        heads: how many; they divide the width.
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise ModelError(f"CausalAttention: expected at least 1 head, seen {heads}")
        self._heads = heads
        self._time = self._width = 0
        self._input = self._weights = np.empty(0)

    @property
    def kind(self) -> str:
        """`attention`."""
        return "attention"

    @property
    def inner_elements(self) -> int:
        """The weights, a square for each head."""
        return self._heads * self._time**2

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(time, 3 x width) -> (time, width)."""
        self.name = name
        if len(input_shape) != 2 or input_shape[1] % (3 * self._heads):
            expected = f"(time, features) with a multiple of {3 * self._heads} features"
            raise shape_error(name, expected, input_shape, "put a Linear of 3 x width units before it")
        self._time, self._width = input_shape[0], input_shape[1] // 3
        return (self._time, self._width)

    def forward(self, x: Array, run: Run) -> Array:
        """Two products for each head, and a softmax between them."""
        self._input = x
        batch = len(x)
        self._weights = self.workspace.take("weights", (batch, self._heads, self._time, self._time), x.dtype)
        y = self.workspace.take("output", (batch, self._time, self._width), x.dtype)
        queries, keys, values = self._parts(x)
        weights, outputs, scale = self._weights, self._by_head(y), self._scale

        def part(first: int, last: int, lane: int) -> None:
            for sample in range(first, last):
                np.matmul(queries[sample], keys[sample].transpose(0, 2, 1), out=weights[sample])
                causal_softmax(weights[sample], scale)
                np.matmul(weights[sample], values[sample], out=outputs[sample])

        run.team.run(part, batch)
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """The gradient of each product, through the softmax."""
        x = self._input
        dx = self.workspace.take("input_gradient", x.shape, x.dtype)
        square = (self._heads, self._time, self._time)
        slopes = run.scratch.take("slopes", (run.team.threads, *square), x.dtype)
        (queries, keys, values), (dqueries, dkeys, dvalues) = self._parts(x), self._parts(dx)
        weights, doutputs, scale = self._weights, self._by_head(dy), self._scale

        def part(first: int, last: int, lane: int) -> None:
            slope = slopes[lane]
            for sample in range(first, last):
                np.matmul(weights[sample].transpose(0, 2, 1), doutputs[sample], out=dvalues[sample])
                np.matmul(doutputs[sample], values[sample].transpose(0, 2, 1), out=slope)
                causal_softmax_gradient(weights[sample], slope, scale)
                np.matmul(slope, keys[sample], out=dqueries[sample])
                np.matmul(slope.transpose(0, 2, 1), queries[sample], out=dkeys[sample])

        run.team.run(part, len(x))
        return dx

    @property
    def _scale(self) -> float:
        return 1.0 / math.sqrt(self._width // self._heads)

    def _parts(self, x: Array) -> tuple[Array, Array, Array]:
        """Views of queries, keys and values, each (batch, heads, time, d)."""
        parts = x.reshape(len(x), self._time, 3, self._heads, -1).transpose(2, 0, 3, 1, 4)
        return parts[0], parts[1], parts[2]

    def _by_head(self, y: Array) -> Array:
        """The view (batch, heads, time, d)."""
        return y.reshape(len(y), self._time, self._heads, -1).transpose(0, 2, 1, 3)
