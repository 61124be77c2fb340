"""The training objective of a classifier."""

from __future__ import annotations

import numpy as np

from kernels.nn.loss import cross_entropy
from taihu.errors import DataError
from worker.engine.layer import Array

__all__ = ["softmax_cross_entropy"]


def softmax_cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Mean cross entropy of softmax(logits) over the batch, and its gradient.

    Args:
        logits: (B, classes), float32 or float64.
        labels: (B,), integers within 0..classes-1.

    Returns:
        The loss, and dloss/dlogits (already divided by B) like `logits`.

    Raises:
        DataError: a label is outside of the range, not an integer, or there are not B of them.
    """
    batch, classes = logits.shape
    if labels.shape != (batch,) or batch == 0 or labels.dtype.kind not in "iu":
        raise DataError(
            f"expected one integer label for each of the {batch} samples of a batch, seen {labels.dtype} of shape "
            f"{labels.shape}"
        )
    low, high = labels.min(), labels.max()
    if low < 0 or high >= classes:
        raise DataError(f"expected labels of 0 to {classes - 1}, seen {low} to {high}; set the model's classes")
    dlogits = np.empty_like(logits)
    loss = cross_entropy(logits, labels.astype(np.int64, copy=False), dlogits)
    return float(loss), dlogits
