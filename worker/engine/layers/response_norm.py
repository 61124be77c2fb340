"""Local response normalisation (Krizhevsky et al. 2012, section 3.3)."""

from __future__ import annotations

import math

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.kernels.nn.response_norm import Response, response_norm, response_norm_gradient
from taihu.worker.engine.base.layer import Array, Layer, Run, Shape, shape_error


class LocalResponseNorm(Layer):
    """y_c = x_c / (k + alpha / size * sum of x_j^2) ^ beta, over the `size` channels around c, as Caffe has it.

    Args:
        size: of the window of channels, odd; channels that there are not count as zeros.
        alpha: weight of the mean square.
        beta: exponent.
        k: what is added; greater than 0.
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(self, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        if size < 1 or size % 2 == 0 or alpha < 0 or beta < 0 or k <= 0 or not math.isfinite(alpha * beta * k):
            raise ModelError(
                "LocalResponseNorm: expected an odd size, alpha and beta of at least 0 and k above 0, seen "
                f"size={size}, alpha={alpha}, beta={beta}, k={k}"
            )
        self._size, self._alpha, self._beta, self._k = size, alpha, beta, k
        self._input = self._scales = np.empty(0)

    @property
    def kind(self) -> str:
        """`lrn`."""
        return "lrn"

    @property
    def response(self) -> Response:
        """Window, weight, exponent and what is added."""
        return Response(self._size, self._alpha, self._beta, self._k)

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(H, W, C), unchanged."""
        self.name = name
        if len(input_shape) != 3:
            raise shape_error(name, "(height, width, channels)", input_shape, "put it before Flatten")
        return input_shape

    def forward(self, x: Array, run: Run) -> Array:
        """Normalise; what was divided by is kept for backward."""
        self._input = x
        self._scales = self.workspace.take("scales", x.shape, x.dtype)
        y = self.workspace.take("output", x.shape, x.dtype)
        arrays = (_rows(x), _rows(self._scales), _rows(y))
        run.team.run(response_norm, len(x), *arrays, self.response, self._scratch(x, 2, run))
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """Differentiate quotient and sum of squares."""
        dx = dy if self.may_overwrite_gradient else self.workspace.take("input_gradient", dy.shape, dy.dtype)
        arrays = (_rows(self._input), _rows(self._scales), _rows(dy), _rows(dx))
        run.team.run(response_norm_gradient, len(dy), *arrays, self.response, self._scratch(dy, 3, run))
        return dx

    def _scratch(self, x: Array, kinds: int, run: Run) -> Array:
        return run.scratch.take("channels", (run.team.threads, kinds, x.shape[-1] + self._size - 1), x.dtype)


def _rows(x: Array) -> Array:
    return x.reshape(len(x), -1, x.shape[-1])
