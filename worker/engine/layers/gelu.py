"""The Gaussian error linear unit (Hendrycks and Gimpel 2016)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.kernels.nn.gelu import gelu, gelu_with_slope, scaled, unary_grains
from taihu.worker.engine.base.layer import Array, Layer, Run, Shape


class GELU(Layer):
    """y = x Phi(x), with the normal distribution's Phi, or with its approximation by a hyperbolic tangent.

    Args:
        approximate: none or tanh, as PyTorch calls them.
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        super().__init__()
        if approximate not in {"none", "tanh"}:
            raise ModelError(f"GELU: expected approximate to be 'none' or 'tanh', seen {approximate!r}")
        self._approximate = approximate
        self._slope = np.empty(0)

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape, unchanged."""
        self.name = name
        return input_shape

    @property
    def holds_output(self) -> bool:
        """Whether it takes a buffer for its output; one for the slope it takes in any case."""
        return not self.may_overwrite_input

    def forward(self, x: Array, run: Run) -> Array:
        """The values, and in training the slopes, which backward needs."""
        y = x if self.may_overwrite_input else self.workspace.take("output", x.shape, x.dtype)
        arrays, by_tanh = (x.reshape(-1), y.reshape(-1)), self._approximate == "tanh"
        if not run.context.training:
            run.team.run(gelu, unary_grains(x), *arrays, by_tanh)
            return y
        self._slope = self.workspace.take("slope", x.shape, x.dtype)
        run.team.run(gelu_with_slope, unary_grains(x), *arrays, self._slope.reshape(-1), by_tanh)
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """The gradient dy times the slope."""
        dx = dy if self.may_overwrite_gradient else self.workspace.take("input_gradient", dy.shape, dy.dtype)
        run.team.run(scaled, unary_grains(dy), dy.reshape(-1), self._slope.reshape(-1), dx.reshape(-1))
        return dx
