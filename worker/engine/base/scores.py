"""Scores of a test beside the loss, counted batch by batch."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from taihu.kernels.nn.loss import surprise
from taihu.worker.engine.base.layer import Array


class Tally(Protocol):
    """Takes in the batches of a test; the first of the metrics is the one that progress shows."""

    def add(self, outputs: Array, targets: Array) -> None:
        """Count a batch: outputs (B, K) of the model, and its targets as the loss takes them."""
        ...

    def metrics(self) -> dict[str, float]:
        """The metrics of all batches so far, at least one, by name."""
        ...


class RightClasses:
    """`accuracy`: the share of samples whose largest output is that of their class."""

    def __init__(self) -> None:
        self._right = self._samples = 0

    def add(self, outputs: Array, targets: Array) -> None:
        """Count a batch; `targets` are (B,) integers."""
        self._right += int((outputs.argmax(axis=1) == targets).sum())
        self._samples += len(targets)

    def metrics(self) -> dict[str, float]:
        """The accuracy, 0..1."""
        return {"accuracy": self._right / self._samples}


class RightBits:
    """`accuracy`: the share of outputs, each counted alone, that are above 0 where the target is above a half."""

    def __init__(self) -> None:
        self._right = self._bits = 0

    def add(self, outputs: Array, targets: Array) -> None:
        """Count a batch; `targets` are (B, K) floats, or (B,) integers where K is 1."""
        self._right += int(((outputs > 0) == (targets.reshape(outputs.shape) > 0.5)).sum())
        self._bits += outputs.size

    def metrics(self) -> dict[str, float]:
        """The accuracy, 0..1."""
        return {"accuracy": self._right / self._bits}


class Surprise:
    """`bits_per_token`, the mean of -log2 of the chance that each token was given, and `perplexity`, 2 to this power.

    Of text tokens are bytes. Label smoothing does not count.
    """

    def __init__(self) -> None:
        self._nats = 0.0
        self._tokens = 0

    def add(self, outputs: Array, targets: Array) -> None:
        """Count a batch: outputs (B, T, K), `targets` (B, T) integers."""
        self._nats += float(surprise(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)))
        self._tokens += targets.size

    def metrics(self) -> dict[str, float]:
        """Both; a perplexity beyond all floats is infinite."""
        bits = self._nats / self._tokens / math.log(2)
        return {"bits_per_token": bits, "perplexity": 2.0**bits if bits < 1000 else math.inf}


class Deviations:
    """`rmse` and `mae`, in units of the targets, over all outputs; `r2`, the mean of that of each output.

    R^2 of an output is 1 - (sum of squared deviations) / (sum of squares around the mean of its targets); where its
    targets are all the same it is 1 if all outputs are right, and 0 otherwise, as in scikit-learn.
    """

    def __init__(self) -> None:
        self._samples = 0
        self._absolute = 0.0
        # Sums per output; those of targets are around the first one, so that a large mean costs no digits.
        self._origin = self._squares = self._sums = self._sums_of_squares = np.zeros(0)

    def add(self, outputs: Array, targets: Array) -> None:
        """Count a batch; `targets` are (B, K) floats."""
        wide = targets.astype(np.float64)
        if not self._samples:
            self._origin = wide[0].copy()
            self._squares, self._sums, self._sums_of_squares = (np.zeros(wide.shape[1]) for _ in range(3))
        deviations, around = outputs.astype(np.float64) - wide, wide - self._origin
        self._samples += len(wide)
        self._absolute += float(np.abs(deviations).sum())
        self._squares += (deviations**2).sum(axis=0)
        self._sums += around.sum(axis=0)
        self._sums_of_squares += (around**2).sum(axis=0)

    def metrics(self) -> dict[str, float]:
        """All three."""
        elements = self._samples * len(self._squares)
        total = self._sums_of_squares - self._sums**2 / self._samples
        # What rounding leaves of targets that are all the same.
        constant = total <= self._sums_of_squares * 1e-12
        right = np.where(self._squares == 0, 1.0, 0.0)
        r2 = np.where(constant, right, 1 - self._squares / np.where(constant, 1.0, total))
        return {
            "rmse": math.sqrt(float(self._squares.sum()) / elements),
            "mae": self._absolute / elements,
            "r2": float(r2.mean()),
        }
