"""The names of the losses, and which of them suits what; told without the engine and without arrays."""

from __future__ import annotations

from typing import Literal

from taihu.core.base.errors import ConfigError

LossName = Literal["auto", "cross-entropy", "mse", "bce"]
TargetKind = Literal["classes", "values", "tokens"]


def find_loss(
    name: LossName, targets: TargetKind, outputs: int, label_smoothing: float = 0.0
) -> Literal["cross-entropy", "mse", "bce"]:
    """The loss that `train.loss` names; `auto` is cross-entropy for classes and tokens, and mse for values.

    Args:
        name: of the loss.
        targets: what the data set has.
        outputs: the number of its classes, or of the values of one sample.
        label_smoothing: 0 or more, below 1.

    Raises:
        ConfigError: the loss, or label smoothing, does not suit the targets.
    """
    if name == "auto":
        name = "mse" if targets == "values" else "cross-entropy"
    if label_smoothing and name != "cross-entropy":
        raise ConfigError(
            f"train.label_smoothing {label_smoothing:g}: only cross-entropy has it, this run's loss is {name}; "
            "leave it out"
        )
    if targets == "tokens" and name != "cross-entropy":
        raise ConfigError(f"train.loss {name!r}: the data set is text, whose tokens are classes; use 'cross-entropy'")
    if targets == "values" and name == "cross-entropy":
        raise ConfigError(
            "train.loss 'cross-entropy': expected classes (integers), the data set's targets are values; use 'mse', "
            "or 'bce' for values of 0 and 1"
        )
    if targets == "classes" and name == "mse":
        raise ConfigError(
            "train.loss 'mse': expected values (floats), the data set's targets are classes; use 'cross-entropy'"
        )
    if targets == "classes" and name == "bce" and outputs != 2:
        raise ConfigError(
            f"train.loss 'bce': expected 2 classes, or values of 0 and 1, the data set has {outputs} classes; "
            "use 'cross-entropy'"
        )
    return name
