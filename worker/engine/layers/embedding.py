"""Tokens as rows of a table, the table of their places, and outputs that use the first table again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.core.model.layout import TensorSpec
from taihu.kernels.nn.embedding import add_rows, first_stranger, take_rows
from taihu.worker.engine.base.layer import Array, Layer, ParameterLayer, Run, Shape, fill_normal, shape_error
from taihu.worker.engine.base.workspace import Workspace
from taihu.worker.engine.layers.products import multiply, multiply_rows

# As in GPT-2 (Radford et al. 2019): outputs that share the table begin near 0.
_DEVIATION: Final = 0.02
_COLUMNS: Final = 64


class Embedding(ParameterLayer):
    """y[t] = the row of a table (tokens, width) that the token x[t] names; tokens are whole numbers as floats.

    A `TiedLinear` may use the table too: its part of the gradient is added to this layer's own, and the gradient is
    ready when both are in it.
    """

    output_is_free = True

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        if min(tokens, width) < 1:
            raise ModelError(
                f"Embedding: expected at least 1 token and a width of at least 1, seen tokens={tokens}, width={width}"
            )
        self._tokens, self._width = tokens, width
        self._input = np.empty(0)
        self._tied = ""
        self._has_more = False
        # Of its own: between the backward of the outputs and this layer's, a workspace may be used by others.
        self._more = Workspace()

    @property
    def takes_tokens(self) -> int:
        """The number of different tokens."""
        return self._tokens

    @property
    def lasting_bytes(self) -> int:
        """Bytes of the other layer's part of the gradient."""
        return self._more.held_bytes

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(time,) -> (time, width)."""
        self.name = name
        if len(input_shape) != 1:
            raise shape_error(name, "(time,) tokens", input_shape, "give it text")
        self.tensors = (TensorSpec("weight", (self._tokens, self._width)),)
        return (*input_shape, self._width)

    def tie(self, name: str, shape: Shape) -> None:
        """Let the layer `name` use the table as one of `shape` too.

        Raises:
            ModelError: another layer does, or the table has another shape.
        """
        if self._tied not in {"", name}:
            raise ModelError(f"{name}: {self._tied} shares the weights of {self.name} already; give it its own")
        if shape != (self._tokens, self._width):
            raise ModelError(
                f"{name}: expected {self.name} to have a table of {shape[0]} x {shape[1]} to share, seen "
                f"{self._tokens} x {self._width}"
            )
        self._tied = name

    def more_gradient(self) -> Array:
        """Memory for the other layer's part of the gradient, which is written before this layer's backward."""
        self._has_more = True
        weight = self.parameters["weight"]
        return self._more.take("gradient", weight.shape, weight.dtype)

    def fill(self, generator: np.random.Generator) -> None:
        """Normal values of the deviation 0.02."""
        fill_normal(self.parameters["weight"], generator, _DEVIATION)

    def compute(self, x: Array, run: Run) -> Array:
        """Copy rows."""
        tokens = x.reshape(-1)
        if (place := first_stranger(tokens, self._tokens)) >= 0:
            raise ModelError(
                f"{self.name}: expected tokens, whole numbers of 0 to {self._tokens - 1}, seen {tokens[place]:g}; "
                "train it on text, or give Embedding more tokens"
            )
        self._input = x
        y = self.workspace.take("output", (*x.shape, self._width), x.dtype)
        run.team.run(take_rows, len(tokens), tokens, self.parameters["weight"], y.reshape(-1, self._width))
        return y

    def differentiate(self, dy: Array, run: Run) -> Array:
        """Sum the rows of dy by token, over what a tied layer has left; tokens have no gradient."""
        gradient = self.gradients["weight"]
        if self._has_more:
            np.copyto(gradient, self.more_gradient())
            self._has_more = False
        else:
            gradient[...] = 0
        rows = dy.reshape(-1, self._width)
        run.team.run(add_rows, -(-self._width // _COLUMNS), self._input.reshape(-1), rows, gradient, _COLUMNS)
        if not self.needs_input_gradient:
            return self._input[:0]
        dx = self.workspace.take("input_gradient", self._input.shape, dy.dtype)
        dx[...] = 0
        return dx


class PositionEmbedding(ParameterLayer):
    """y[t] = x[t] + the t-th row of a table (time, features)."""

    output_is_free = True

    @property
    def kind(self) -> str:
        """`position`."""
        return "position"

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(time, features), unchanged."""
        self.name = name
        if len(input_shape) != 2:
            raise shape_error(name, "(time, features)", input_shape, "put it behind an Embedding")
        self.tensors = (TensorSpec("weight", input_shape),)
        return input_shape

    def fill(self, generator: np.random.Generator) -> None:
        """Normal values of the deviation 0.02."""
        fill_normal(self.parameters["weight"], generator, _DEVIATION)

    def compute(self, x: Array, run: Run) -> Array:
        """Add the table to every sample."""
        y = x if self.may_overwrite_input else self.workspace.take("output", x.shape, x.dtype)
        np.add(x, self.parameters["weight"], out=y)
        return y

    def differentiate(self, dy: Array, run: Run) -> Array:
        """Sum over the samples; the gradient of the input is that of the output."""
        np.add.reduce(dy, axis=0, out=self.gradients["weight"])
        return dy


class TiedLinear(Layer):
    """y[t] = x[t] W^T with the table W (units, features) of the model's layer `weights`, an `Embedding`.

    It has no parameters of its own (Press and Wolf 2017). That layer's are read again here, in forward and backward.

    Args:
        units: number of outputs at each place, the tokens of that embedding.
        weights: its name in the model, by default of the first one of the outermost chain.
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(self, units: int, weights: str = "embedding1") -> None:
        super().__init__()
        if units < 1:
            raise ModelError(f"TiedLinear: expected at least 1 unit, seen {units}")
        self._units, self._weights = units, weights
        self._features = 0
        self._shared: Embedding | None = None
        self._input = np.empty(0)

    @property
    def kind(self) -> str:
        """`tied`."""
        return "tied"

    @property
    def borrows(self) -> str:
        """The layer whose table it uses."""
        return self._weights

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(time, features) -> (time, units)."""
        self.name = name
        if len(input_shape) != 2:
            raise shape_error(name, "(time, features)", input_shape, "put it at the end of a model of tokens")
        self._features = input_shape[1]
        return (input_shape[0], self._units)

    def link(self, layers: Mapping[str, Layer]) -> None:
        """Find the embedding.

        Raises:
            ModelError: there is none of this name, or its table has another shape.
        """
        found = layers.get(self._weights)
        if not isinstance(found, Embedding):
            names = [name for name, layer in layers.items() if isinstance(layer, Embedding)]
            raise ModelError(
                f"{self.name}: expected weights to name an Embedding of the model, seen {self._weights!r}; it has "
                f"{', '.join(names) or 'none'}"
            )
        found.tie(self.name, (self._units, self._features))
        self._shared = found

    def forward(self, x: Array, run: Run) -> Array:
        """One product with the table, which is read a second time."""
        shared = self._embedding()
        run.before_layer(shared.index)
        self._input = x
        y = self.workspace.take("output", (*x.shape[:-1], self._units), x.dtype)
        multiply_rows(
            run.team, x.reshape(-1, self._features), shared.parameters["weight"].T, y.reshape(-1, self._units)
        )
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """The table's part dy^T x is left to its layer; dx = dy W."""
        shared = self._embedding()
        run.before_layer(shared.index)
        rows, x = dy.reshape(-1, self._units), self._input
        multiply(run.team, rows.T, x.reshape(-1, self._features), shared.more_gradient())
        dx = self.workspace.take("input_gradient", x.shape, x.dtype)
        multiply_rows(run.team, rows, shared.parameters["weight"], dx.reshape(-1, self._features))
        return dx

    def _embedding(self) -> Embedding:
        if self._shared is None:
            raise ModelError(f"{self.name}: it uses the table of {self._weights}; build it as part of a Model")
        return self._shared
