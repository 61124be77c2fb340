"""The training objectives: of classes, of values, and of yes or no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from taihu.core.base.errors import DataError
from taihu.core.model.losses import LossName, TargetKind, find_loss
from taihu.kernels.nn.loss import binary_cross_entropy, cross_entropy, smoothed_cross_entropy, squared_error
from taihu.worker.engine.base.layer import Array
from taihu.worker.engine.base.scores import Deviations, RightBits, RightClasses, Surprise, Tally


class Loss(Protocol):
    """A mean over the samples of a batch.

    The mean of a batch is that of its parts, each weighted by its number of samples: passes over parts of a batch add
    up.
    """

    @property
    def name(self) -> str:
        """The name, as in `train.loss`."""
        ...

    @property
    def by_place(self) -> bool:
        """Whether outputs and targets are those of every place of a sequence."""
        ...

    def __call__(self, outputs: Array, targets: Array) -> tuple[float, Array]:
        """The mean loss over the batch, and its gradient.

        Args:
            outputs: (B, K), float32 or float64, what the model's last layer returned; by place (B, T, K).
            targets: (B,) integers, or (B, K) floats; by place (B, T) integers.

        Returns:
            The loss, and dloss/doutputs (already divided by B) like `outputs`, in a new array.

        Raises:
            DataError: the targets do not fit.
        """
        ...

    def tally(self) -> Tally:
        """A new count of what a test says beside the loss."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """Cross entropy of softmax(outputs) against classes, of which every one gets its part of `label_smoothing`."""

    label_smoothing: float = 0.0
    by_place: Final = False

    @property
    def name(self) -> str:
        """`cross-entropy`."""
        return "cross-entropy"

    def __call__(self, outputs: Array, targets: Array) -> tuple[float, Array]:
        """Mean loss and gradient; `targets` are (B,), integers within 0..K-1."""
        labels = _checked_labels(targets, *outputs.shape)
        doutputs = np.empty_like(outputs)
        if self.label_smoothing:
            return float(smoothed_cross_entropy(outputs, labels, self.label_smoothing, doutputs)), doutputs
        return float(cross_entropy(outputs, labels, doutputs)), doutputs

    def tally(self) -> Tally:
        """Accuracy."""
        return RightClasses()


@dataclass(frozen=True)
class TokenCrossEntropy:
    """Cross entropy of softmax(outputs) against the class of every place; the mean over places and samples."""

    label_smoothing: float = 0.0
    by_place: Final = True

    @property
    def name(self) -> str:
        """`cross-entropy`."""
        return "cross-entropy"

    def __call__(self, outputs: Array, targets: Array) -> tuple[float, Array]:
        """Mean loss and gradient; `outputs` are (B, T, K), `targets` (B, T), integers within 0..K-1."""
        if outputs.shape[:-1] != targets.shape:
            raise DataError(
                f"expected one integer label for each of {outputs.shape[:-1]} places, seen {targets.dtype} of shape "
                f"{targets.shape}"
            )
        rows = outputs.reshape(-1, outputs.shape[-1])
        loss, doutputs = CrossEntropy(self.label_smoothing)(rows, targets.reshape(-1))
        return loss, doutputs.reshape(outputs.shape)

    def tally(self) -> Tally:
        """Bits for each token, and perplexity."""
        return Surprise()


@dataclass(frozen=True)
class MeanSquaredError:
    """Mean of (outputs - targets)^2 over samples and outputs."""

    by_place: Final = False

    @property
    def name(self) -> str:
        """`mse`."""
        return "mse"

    def __call__(self, outputs: Array, targets: Array) -> tuple[float, Array]:
        """Mean loss and gradient; `targets` are (B, K) floats."""
        values = _checked_values(targets, outputs)
        doutputs = np.empty_like(outputs)
        return float(squared_error(outputs, values, doutputs)), doutputs

    def tally(self) -> Tally:
        """Root of the mean squared error, mean absolute error, and R^2."""
        return Deviations()


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Mean over samples and outputs of the cross entropy of sigmoid(outputs) against 0 and 1, or between them."""

    by_place: Final = False

    @property
    def name(self) -> str:
        """`bce`."""
        return "bce"

    def __call__(self, outputs: Array, targets: Array) -> tuple[float, Array]:
        """Mean loss and gradient; `targets` are (B, K) floats in 0..1, or (B,) integers 0 and 1 where K is 1."""
        values = _checked_values(_as_column(targets, outputs), outputs)
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= 1):
            raise DataError(f"train.loss 'bce': expected targets of 0 to 1, seen {low:g} to {high:g}; use 'mse'")
        doutputs = np.empty_like(outputs)
        return float(binary_cross_entropy(outputs, values, doutputs)), doutputs

    def tally(self) -> Tally:
        """Accuracy of outputs above 0 against targets above a half."""
        return RightBits()


def make_loss(name: LossName, targets: TargetKind, outputs: int, label_smoothing: float = 0.0) -> Loss:
    """The loss that `train.loss` names, for data of `outputs` classes or values; see `find_loss`.

    Raises:
        ConfigError: the loss, or label smoothing, does not suit the targets.
    """
    found = find_loss(name, targets, outputs, label_smoothing)
    if targets == "tokens":
        return TokenCrossEntropy(label_smoothing)
    if found == "cross-entropy":
        return CrossEntropy(label_smoothing)
    return MeanSquaredError() if found == "mse" else BinaryCrossEntropy()


def outputs_of_model(loss: Loss, targets: TargetKind, outputs: int) -> int:
    """Number of outputs of a model for a data set of `outputs` classes or values: one where bce tells two classes."""
    return 1 if loss.name == "bce" and targets == "classes" else outputs


def softmax_cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """`CrossEntropy()(logits, labels)`."""
    return CrossEntropy()(logits, labels)


def _checked_labels(labels: Array, batch: int, classes: int) -> Array:
    if labels.shape != (batch,) or batch == 0 or labels.dtype.kind not in "iu":
        raise DataError(
            f"expected one integer label for each of the {batch} samples of a batch, seen {labels.dtype} of shape "
            f"{labels.shape}"
        )
    low, high = labels.min(), labels.max()
    if low < 0 or high >= classes:
        raise DataError(f"expected labels of 0 to {classes - 1}, seen {low} to {high}; set the model's classes")
    return labels.astype(np.int64, copy=False)


def _as_column(targets: Array, outputs: Array) -> Array:
    """Labels of two classes as values of one output."""
    one_each = targets.dtype.kind in "iu" and targets.shape == (len(outputs),) and outputs.shape[1] == 1
    return targets.astype(outputs.dtype).reshape(-1, 1) if one_each else targets


def _checked_values(values: Array, outputs: Array) -> Array:
    if values.shape != outputs.shape or not len(values) or values.dtype.kind != "f":
        raise DataError(
            f"expected {outputs.shape[1]} values for each of the {len(outputs)} samples of a batch, seen "
            f"{values.dtype} of shape {values.shape}"
        )
    return values
