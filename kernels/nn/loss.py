"""Losses and their gradients, each in one pass over the outputs of a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel


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


@kernel
def smoothed_cross_entropy(
    logits: NDArray[Any], labels: NDArray[np.int64], smoothing: float, dlogits: NDArray[Any]
) -> float:
    """Mean cross entropy of softmax(logits) against labels that leave `smoothing` to all classes alike.

    The target of a sample is (1 - smoothing) one-hot + smoothing / classes (Szegedy et al. 2015, section 7).

    Args:
        logits: (B, classes), C-contiguous.
        labels: (B,), each within 0..classes-1 (not checked here).
        smoothing: 0 or more, below 1.
        dlogits: written, like `logits`: (softmax - target) / B.

    Returns:
        The loss, summed in float64 in row order; NaN when a logit is NaN.
    """
    batch, classes = logits.shape
    rest = smoothing / classes
    total = 0.0
    for b in range(batch):
        line = logits[b]
        gradient = dlogits[b]
        peak = line[0]
        for c in range(1, classes):
            peak = max(peak, line[c])
        normaliser = 0.0
        height = 0.0
        for c in range(classes):
            gradient[c] = math.exp(line[c] - peak)
            normaliser += gradient[c]
            height += line[c] - peak
        total += math.log(normaliser) - (1.0 - smoothing) * (line[labels[b]] - peak) - rest * height
        scale = 1.0 / (normaliser * batch)
        for c in range(classes):
            gradient[c] = gradient[c] * scale - rest / batch
        gradient[labels[b]] -= (1.0 - smoothing) / batch
    mean: float = total / batch
    return mean


@kernel
def squared_error(outputs: NDArray[Any], targets: NDArray[Any], doutputs: NDArray[Any]) -> float:
    """Mean of (outputs - targets)^2 over all elements, and its gradient.

    Args:
        outputs: (B, K), C-contiguous.
        targets: (B, K).
        doutputs: written, like `outputs`: 2 (outputs - targets) / (B K).

    Returns:
        The loss, summed in float64 in row order.
    """
    batch, width = outputs.shape
    scale = 2.0 / (batch * width)
    total = 0.0
    for b in range(batch):
        for k in range(width):
            difference = np.float64(outputs[b, k]) - np.float64(targets[b, k])
            total += difference * difference
            doutputs[b, k] = difference * scale
    mean: float = total / (batch * width)
    return mean


@kernel
def binary_cross_entropy(logits: NDArray[Any], targets: NDArray[Any], dlogits: NDArray[Any]) -> float:
    """Mean over all elements of the cross entropy of sigmoid(logits) against `targets`, and its gradient.

    Args:
        logits: (B, K), C-contiguous.
        targets: (B, K), each within 0..1 (not checked here).
        dlogits: written, like `logits`: (sigmoid(logits) - targets) / (B K).

    Returns:
        The loss, summed in float64 in row order; NaN when a logit is NaN.
    """
    batch, width = logits.shape
    scale = 1.0 / (batch * width)
    total = 0.0
    for b in range(batch):
        for k in range(width):
            logit, target = np.float64(logits[b, k]), np.float64(targets[b, k])
            # Of e^z and e^-z the one that cannot overflow.
            small = math.exp(-abs(logit))
            total += (logit if logit > 0.0 else 0.0) - logit * target + math.log1p(small)
            share = (1.0 if logit >= 0.0 else small) / (1.0 + small)
            dlogits[b, k] = (share - target) * scale
    mean: float = total / (batch * width)
    return mean


@kernel
def surprise(logits: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """The sum of -log softmax(logits)[label], in nats, over the rows of `logits` (N, K) and `labels` (N,)."""
    nats = 0.0
    for place in range(labels.size):
        line = logits[place]
        peak = line[0]
        for k in range(1, line.size):
            peak = max(peak, line[k])
        total = 0.0
        for k in range(line.size):
            total += math.exp(line[k] - peak)
        nats += math.log(total) + peak - line[labels[place]]
    return nats
