"""Batch normalisation (Ioffe and Szegedy 2015) over all axes but the last."""

from __future__ import annotations

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.core.model.layout import TensorSpec
from taihu.kernels.nn.batch_norm import (
    channel_moments,
    fold,
    gradient_moments,
    normalize_gradient,
    row_blocks,
    scale_and_shift,
)
from taihu.worker.engine.base.layer import Array, ParameterLayer, Run, Shape


class BatchNorm(ParameterLayer):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift per channel, over the worker's own batch.

    Training uses the moments of the batch and moves the running ones towards them (the variance unbiased), once in a
    step; evaluation uses the running ones.

    Args:
        momentum: part of the running moments that stays in a step.
        epsilon: added to the variance.
    """

    output_is_free = True
    gradient_is_free = True
    rectification = "step"

    def __init__(self, momentum: float = 0.9, epsilon: float = 1e-5) -> None:
        super().__init__()
        if not 0.0 <= momentum <= 1.0 or epsilon < 0.0:
            raise ModelError(
                f"BatchNorm: expected a momentum of 0 to 1 and an epsilon of at least 0, seen momentum={momentum}, "
                f"epsilon={epsilon}"
            )
        self._momentum, self._epsilon = momentum, epsilon
        self._running_mean = self._running_variance = np.empty(0, np.float32)
        self._input = self._mean = self._deviation_inverse = np.empty(0)

    @property
    def kind(self) -> str:
        """`norm`."""
        return "norm"

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape with channels last, unchanged."""
        self.name = name
        channels = input_shape[-1]
        self.tensors = (TensorSpec("scale", (channels,)), TensorSpec("shift", (channels,)))
        return input_shape

    def bind(self, parameters: Array, gradients: Array) -> None:
        """Take the arenas, and make the running moments, of the size of a bound layer."""
        super().bind(parameters, gradients)
        channels = self.parameters["scale"].size
        if self._running_mean.size != channels:
            self._running_mean, self._running_variance = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def fill(self, generator: np.random.Generator) -> None:
        """Scale 1, shift 0, and running moments of a standard normal input."""
        self.parameters["scale"][...] = 1
        self.parameters["shift"][...] = 0
        self._running_mean[...] = 0
        self._running_variance[...] = 1

    def buffers(self) -> dict[str, Array]:
        """The running moments, float32."""
        return {"running_mean": self._running_mean, "running_variance": self._running_variance}

    def compute(self, x: Array, run: Run) -> Array:
        """Fold the moments, scale and shift into one multiplication and addition per element."""
        self._input = x
        rows = x.reshape(-1, x.shape[-1])
        if run.context.training:
            mean, variance = self._batch_moments(rows, run)
        else:
            mean, variance = self._running_mean.astype(np.float64), self._running_variance.astype(np.float64)
        self._mean, self._deviation_inverse = mean, 1.0 / np.sqrt(variance + self._epsilon)
        factor = self.parameters["scale"] * self._deviation_inverse
        self._affine = np.stack((factor, self.parameters["shift"] - mean * factor)).astype(x.dtype)
        y = self.workspace.take("output", x.shape, x.dtype)
        arguments = (rows, self._affine, y.reshape(rows.shape), self.rectify)
        run.team.run(scale_and_shift, row_blocks(rows), *arguments)
        return y

    def _batch_moments(self, rows: Array, run: Run) -> tuple[Array, Array]:
        count = len(rows)
        totals = self._totals(rows, run)
        run.team.run(channel_moments, len(totals), rows, totals)
        fold(totals)
        mean = totals[0, 0] / count
        variance = np.maximum(totals[0, 1] / count - mean * mean, 0.0)
        if not run.recompute:
            self._move_running_moments(mean, variance * (count / max(count - 1, 1)))
        return mean, variance

    def _totals(self, rows: Array, run: Run) -> Array:
        return run.scratch.take("totals", (row_blocks(rows), 2, rows.shape[1]), np.float64)

    def _move_running_moments(self, mean: Array, unbiased_variance: Array) -> None:
        kept = self._momentum
        self._running_mean[...] = kept * self._running_mean + (1 - kept) * mean
        self._running_variance[...] = kept * self._running_variance + (1 - kept) * unbiased_variance

    def differentiate(self, dy: Array, run: Run) -> Array:
        """The gradient dx = scale / deviation * (dy - mean(dy) - n mean(dy n)), with n = (x - mean) / deviation."""
        x = self._input
        rows, dy_rows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, x.shape[-1])
        count = len(rows)
        totals, mean = self._totals(rows, run), self._mean
        run.team.run(
            gradient_moments, len(totals), rows, dy_rows, mean.astype(x.dtype), self._affine, totals, self.rectify
        )
        fold(totals)
        sums, products = totals[0]
        inverse = self._deviation_inverse
        self.gradients["scale"][...] = products * inverse
        self.gradients["shift"][...] = sums
        factor = self.parameters["scale"] * inverse
        x_factor = -factor * inverse**2 * products / count
        factors = np.stack((factor, x_factor, -factor * sums / count - x_factor * mean)).astype(x.dtype)
        dx = dy if self.may_overwrite_gradient else self.workspace.take("input_gradient", x.shape, x.dtype)
        arguments = (rows, dy_rows, factors, self._affine, dx.reshape(rows.shape), self.rectify)
        run.team.run(normalize_gradient, row_blocks(rows), *arguments)
        return dx
