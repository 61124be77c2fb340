"""The objective of a job: the loss, and the model with the outputs that this asks for."""

from __future__ import annotations

from taihu.core.job import Job
from taihu.core.settings import TrainSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.engine import Model, build_model
from taihu.worker.engine.base.loss import Loss, make_loss, outputs_of_model


def model_for(job: Job, data: Dataset) -> Model:
    """The job's model for `data`, with its loss; not bound to arenas yet.

    Raises:
        ConfigError: see `objective`.
        ModelError: see `build_model` and `Model.use_loss`.
    """
    loss, outputs = objective(job.train, data)
    model = build_model(job.model.name, data.input_shape, outputs)
    model.use_loss(loss)
    return model


def objective(train: TrainSettings, data: Dataset) -> tuple[Loss, int]:
    """The loss on `data`, and the number of outputs that a model for it has.

    Raises:
        ConfigError: the loss, or label smoothing, does not suit the targets.
    """
    loss = make_loss(train.loss, data.targets, data.outputs, train.label_smoothing)
    return loss, outputs_of_model(loss, data.targets, data.outputs)
