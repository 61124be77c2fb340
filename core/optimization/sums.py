"""Sums of gradients on a server, where the workers update their parameters themselves (ZeRO stage 0)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.selection.scatter import scatter_assign

Values = NDArray[np.float32]


class SumShard:
    """A stand-in for an `OptimizerShard` that puts each sum in the place of the parameters.

    What is answered is then the sum, which every worker scales and applies for itself; all do so alike. Where it is
    rounded to be answered it is made a mean before, so that it is rounded once.

    Args:
        values: shape (n,), fp32, contiguous and writable; kept, not copied.
        scales: whether sums are made means.
    """

    state_bytes = 0

    def __init__(self, values: Values, *, scales: bool = False) -> None:
        self._values = values
        self._scales = scales

    def update(self, start: int, stop: int, gradient: Values, step: int, scale: float = 1.0) -> None:
        """Keep `gradient`, shape (stop - start,), fp32, as elements [start, stop); the rest is for the workers."""
        if self._scales:
            np.multiply(gradient, np.float32(scale), out=self._values[start:stop])
        else:
            np.copyto(self._values[start:stop], gradient)

    def update_sparse(self, indices: NDArray[np.int32], gradient: Values, step: int, scale: float = 1.0) -> None:
        """Keep `gradient`, shape (k,), fp32, at these places, shape (k,), int32, which alone are answered then."""
        scatter_assign(indices, gradient, self._values)

    def warm_up(self) -> None:
        """There is nothing to compile."""
