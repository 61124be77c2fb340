"""Mean gradients in the place of updates, for optimizers of the user's own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError

Values = NDArray[np.float32]


class MeanGradients:
    """A stand-in for an `OptimizerShard` that leaves the parameters alone, and the mean gradient in the arena.

    Disjoint ranges may be given at the same time from different threads.

    Args:
        parameters: shape (n,), fp32; those that the gradients are of.
        gradients: shape (n,), fp32, contiguous and writable: where the means go.
    """

    def __init__(self, parameters: Values, gradients: Values) -> None:
        self._parameters = parameters
        self._gradients = gradients

    @property
    def parameters(self) -> Values:
        """The parameters, shape (n,)."""
        return self._parameters

    def update(self, start: int, stop: int, gradient: Values, step: int, scale: float = 1.0) -> None:
        """Put `scale * gradient`, a sum of shape (stop - start,), into elements [start, stop); it may lie there."""
        np.multiply(gradient, np.float32(scale), out=self._gradients[start:stop])

    def update_sparse(self, indices: NDArray[np.int32], gradient: Values, step: int, scale: float = 1.0) -> None:
        """Raise ConfigError: who reads all gradients needs the whole sum."""
        raise ConfigError("mean gradients are those of every element; set compression.downlink = 'dense'")

    def state(self) -> dict[str, Values]:
        """Nothing: the optimizer is the user's."""
        return {}

    def warm_up(self) -> None:
        """There is nothing to compile."""
