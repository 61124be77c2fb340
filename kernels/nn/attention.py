"""The softmax between the products of causal attention, and its gradient (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel_reassociating


@kernel_reassociating
def causal_softmax(scores: NDArray[Any], scale: float) -> None:
    """Replace row i of each of `scores` (M, T, T) by softmax(scale * its first i + 1 values); zeros behind them."""
    kind = scores.dtype.type
    factor = kind(scale)
    for matrix in scores:
        for i in range(matrix.shape[0]):
            row = matrix[i]
            peak = row[0]
            for j in range(1, i + 1):
                peak = max(peak, row[j])
            total = kind(0)
            for j in range(i + 1):
                weight = math.exp((row[j] - peak) * factor)
                row[j] = weight
                total += weight
            share = kind(1) / total
            for j in range(i + 1):
                row[j] *= share
            for j in range(i + 1, row.size):
                row[j] = kind(0)


@kernel_reassociating
def causal_softmax_gradient(weights: NDArray[Any], dweights: NDArray[Any], scale: float) -> None:
    """Replace gradients of the weights, (M, T, T), by those of the scores, for the `weights` of `causal_softmax`."""
    kind = weights.dtype.type
    factor = kind(scale)
    for m in range(weights.shape[0]):
        for i in range(weights.shape[1]):
            row, gradient = weights[m, i], dweights[m, i]
            mean = kind(0)
            for j in range(i + 1):
                mean += row[j] * gradient[j]
            for j in range(i + 1):
                gradient[j] = row[j] * (gradient[j] - mean) * factor
            for j in range(i + 1, row.size):
                gradient[j] = kind(0)
