"""Layers made of layers: a chain, and a residual block with its shortcuts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from taihu.core.base.errors import ModelError
from taihu.kernels.nn.elementwise import add, add_rectified, grains
from taihu.worker.engine.base.layer import Array, Layer, ParameterLayer, Run, Shape, shape_error


class Sequential(Layer):
    """Layers one after another; its children are named by kind and count, for example `conv1`, `conv2`."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self._layers = tuple(layers)
        if not self._layers:
            raise ModelError("Sequential: expected at least one layer, seen none")
        for layer in self._layers:
            if not isinstance(layer, Layer):
                raise ModelError(f"Sequential: expected layers, seen {type(layer).__name__}")
        self.output_is_free = self._layers[-1].output_is_free
        self.gradient_is_free = self._layers[0].gradient_is_free
        self._first_differentiated = 0

    @property
    def children(self) -> tuple[Layer, ...]:
        """The layers in forward order."""
        return self._layers

    @property
    def holds_output(self) -> bool:
        """Never: it returns what its last child returned."""
        return False

    @property
    def first_differentiated(self) -> int:
        """The child that backward ends with."""
        return self._first_differentiated

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Build the children in order; names are prefixed with `name` unless it is empty."""
        self.name = name
        counts: Counter[str] = Counter()
        shape = input_shape
        for layer in self._layers:
            counts[layer.kind] += 1
            shape = layer.build(_child(name, f"{layer.kind}{counts[layer.kind]}"), shape)
            layer.output_elements = math.prod(shape)
        # The ends of the chain are seen from outside: only what lies between two children is theirs alone.
        # From the last on: a layer that leaves all to the one before hands on the gradient that it is given.
        for following, layer in pairwise(reversed(self._layers)):
            following.follow(layer)
            following.may_overwrite_input = layer.output_is_free
            layer.may_overwrite_gradient = following.gradient_is_free
        return shape

    def skip_input_gradient(self) -> None:
        """Backward ends with the first child that has parameters."""
        super().skip_input_gradient()
        for i, layer in enumerate(self._layers):
            if any(isinstance(leaf, ParameterLayer) for leaf in layer.leaves()):
                self._first_differentiated = i
                layer.skip_input_gradient()
                return

    def forward(self, x: Array, run: Run) -> Array:
        """First to last."""
        for layer in self._layers:
            x = layer.forward(x, run)
        return x

    def backward(self, dy: Array, run: Run) -> Array:
        """Last to first."""
        for layer in reversed(self._layers[self._first_differentiated :]):
            dy = layer.backward(dy, run)
        return dy


class Residual(Layer):
    """y = body(x) + shortcut(x) (He et al. 2015, section 3.2); without a shortcut, y = body(x) + x.

    The body runs first in the forward, and so last in the backward: its layers lie behind the shortcut's in the
    layout.
    """

    output_is_free = True
    gradient_is_free = True
    rectification = "forward"

    def __init__(self, body: Layer, shortcut: Layer | None = None) -> None:
        super().__init__()
        self._body, self._shortcut = body, shortcut

    @property
    def children(self) -> tuple[Layer, ...]:
        """Body, then shortcut."""
        return (self._body,) if self._shortcut is None else (self._body, self._shortcut)

    @property
    def holds_output(self) -> bool:
        """Whether it takes a buffer: not where it may write over what the body returned."""
        return not self._body.output_is_free

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Both branches must have the same output shape."""
        self.name = name
        output = self._body.build(_child(name, "body"), input_shape)
        shortcut = input_shape
        if self._shortcut is not None:
            shortcut = self._shortcut.build(_child(name, "shortcut"), input_shape)
        if output != shortcut:
            raise ModelError(
                f"{name}: expected the same shape from body and shortcut, seen {output} and {shortcut}; "
                "give Residual a shortcut that changes the shape as the body does"
            )
        for child in self.children:
            child.output_elements = math.prod(output)
        return output

    def forward(self, x: Array, run: Run) -> Array:
        """Add the branches."""
        body = self._body.forward(x, run)
        shortcut = x if self._shortcut is None else self._shortcut.forward(x, run)
        y = body if self._body.output_is_free else self.workspace.take("output", body.shape, body.dtype)
        arrays = (body.reshape(-1), shortcut.reshape(-1), y.reshape(-1))
        run.team.run(add_rectified if self.rectify else add, grains(y), *arrays)
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """Add the gradients of the branches."""
        shortcut = dy if self._shortcut is None else self._shortcut.backward(dy, run)
        body = self._body.backward(dy, run)
        dx = body if self._body.gradient_is_free else self.workspace.take("input_gradient", body.shape, body.dtype)
        run.team.run(add, grains(dx), body.reshape(-1), shortcut.reshape(-1), dx.reshape(-1))
        return dx


class PaddedShortcut(Layer):
    """The parameter-free shortcut of He et al. 2015, option A: every `stride`-th pixel, zeros for new channels."""

    output_is_free = True
    gradient_is_free = True

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        if min(channels, stride) < 1:
            raise ModelError(
                f"PaddedShortcut: expected at least 1 channel and a stride of at least 1, seen channels={channels}, "
                f"stride={stride}"
            )
        self._channels, self._stride = channels, stride
        self._input_shape: Shape = ()
        self._output_shape: Shape = ()

    @property
    def stride(self) -> int:
        """Distance of the pixels that stay."""
        return self._stride

    @property
    def channels(self) -> int:
        """Channels of the output."""
        return self._channels

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(H, W, C) -> (ceil(H / stride), ceil(W / stride), channels)."""
        self.name = name
        if len(input_shape) != 3 or input_shape[2] > self._channels:
            expected = f"(height, width, at most {self._channels} channels)"
            raise shape_error(name, expected, input_shape, "use a Conv2d with a 1 x 1 kernel as the shortcut")
        self._input_shape = input_shape
        height, width = (-(-side // self._stride) for side in input_shape[:2])
        self._output_shape = (height, width, self._channels)
        return self._output_shape

    def forward(self, x: Array, run: Run) -> Array:
        """Copy the pixels that stay."""
        channels = self._input_shape[2]
        y = self.workspace.take("output", (len(x), *self._output_shape), x.dtype)
        y[..., :channels] = x[:, :: self._stride, :: self._stride]
        y[..., channels:] = 0
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """Copy their gradients back."""
        dx = self.workspace.take("input_gradient", (len(dy), *self._input_shape), dy.dtype)
        dx[...] = 0
        dx[:, :: self._stride, :: self._stride] = dy[..., : self._input_shape[2]]
        return dx


def _child(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
