"""Layer normalisation (Ba et al. 2016) over the last axis."""

from __future__ import annotations

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.core.model.layout import TensorSpec
from taihu.kernels.nn.batch_norm import fold
from taihu.kernels.nn.layer_norm import layer_norm, layer_norm_gradient, norm_blocks
from taihu.worker.engine.base.layer import Array, ParameterLayer, Run, Shape, shape_error


class LayerNorm(ParameterLayer):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, with the moments of each row of features alone.

    Args:
        epsilon: added to the variance.
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        if not epsilon > 0.0:
            raise ModelError(f"LayerNorm: expected an epsilon above 0, seen {epsilon}")
        self._epsilon = epsilon
        self._input = self._moments = np.empty(0)

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape with features last, unchanged."""
        self.name = name
        if not input_shape:
            raise shape_error(name, "(..., features)", input_shape, "put a layer before it")
        features = input_shape[-1]
        self.tensors = (TensorSpec("scale", (features,)), TensorSpec("shift", (features,)))
        return input_shape

    def fill(self, generator: np.random.Generator) -> None:
        """Scale 1, shift 0."""
        self.parameters["scale"][...] = 1
        self.parameters["shift"][...] = 0

    def compute(self, x: Array, run: Run) -> Array:
        """Normalise every row; its moments are kept."""
        self._input = x
        rows = x.reshape(-1, x.shape[-1])
        y = self.workspace.take("output", x.shape, x.dtype)
        self._moments = self.workspace.take("moments", (len(rows), 2), x.dtype)
        parameters = self.parameters["scale"], self.parameters["shift"], self._epsilon
        run.team.run(layer_norm, norm_blocks(len(rows)), rows, *parameters, y.reshape(rows.shape), self._moments)
        return y

    def differentiate(self, dy: Array, run: Run) -> Array:
        """Sums over all rows for scale and shift, and dx; see `layer_norm_gradient`."""
        x = self._input
        rows, blocks = x.reshape(-1, x.shape[-1]), norm_blocks(x.size // x.shape[-1])
        totals = run.scratch.take("totals", (blocks, 2, rows.shape[1]), np.float64)
        dx = dy if self.may_overwrite_gradient else self.workspace.take("input_gradient", x.shape, x.dtype)
        slopes, target = dy.reshape(rows.shape), dx.reshape(rows.shape)
        run.team.run(
            layer_norm_gradient, blocks, rows, slopes, self.parameters["scale"], self._moments, target, totals
        )
        fold(totals)
        self.gradients["scale"][...], self.gradients["shift"][...] = totals[0]
        return dx
