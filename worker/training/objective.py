"""The objective of a job: the loss that its model is trained for, and the outputs that this loss asks for."""

from __future__ import annotations

from taihu.settings import TrainSettings
from worker.data.dataset import Dataset
from worker.engine.loss import Loss, make_loss, outputs_of_model

__all__ = ["objective"]


def objective(train: TrainSettings, data: Dataset) -> tuple[Loss, int]:
    """The loss on `data`, and the number of outputs that a model for it has.

    Raises:
        ConfigError: the loss, or label smoothing, does not suit the targets.
    """
    loss = make_loss(train.loss, data.targets, data.outputs, train.label_smoothing)
    return loss, outputs_of_model(loss, data.targets, data.outputs)
