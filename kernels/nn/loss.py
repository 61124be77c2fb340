"""Softmax and cross entropy in one pass over the logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.jit import kernel

__all__ = ["cross_entropy"]


@kernel
def cross_entropy(logits: NDArray[Any], labels: NDArray[np.int64], dlogits: NDArray[Any]) -> float:
    """Mean cross entropy of softmax(logits) against `labels`, and its gradient.

    Args:
        logits: (B, classes), C-contiguous.
        labels: (B,), each within 0..classes-1 (not checked here).
        dlogits: written, like `logits`: (softmax - one-hot) / B.

    Returns:
        The loss, summed in float64 in row order; NaN when a logit is NaN.
    """
    batch, classes = logits.shape
    total = 0.0
    for b in range(batch):
        line = logits[b]
        gradient = dlogits[b]
        peak = line[0]
        for c in range(1, classes):
            peak = max(peak, line[c])
        normaliser = 0.0
        for c in range(classes):
            gradient[c] = math.exp(line[c] - peak)
            normaliser += gradient[c]
        total += math.log(normaliser) - (line[labels[b]] - peak)
        scale = 1.0 / (normaliser * batch)
        for c in range(classes):
            gradient[c] *= scale
        gradient[labels[b]] -= 1.0 / batch
    mean: float = total / batch
    return mean
