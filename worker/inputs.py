"""What a worker reads besides its job, looked for before anything is started."""

from __future__ import annotations

from typing import Final

from taihu.errors import ModelError
from taihu.job import Job
from taihu.losses import find_loss
from taihu.model_defaults import check_model_fits
from taihu.names import built_in_data, layers_file, own_model
from worker.data.sources import check_batch, check_sources

__all__ = ["check_inputs"]

# How many samples their files have is known when they are read.
_FILES_OF_ANY_LENGTH: Final = ("fashion-mnist", "cifar10")


def check_inputs(job: Job) -> None:
    """Check that the files of the job's model and data set are on this machine; none of them is read.

    What is known of taihu's own models and data sets is checked too: that the loss and the model fit the data.

    Raises:
        ConfigError: the loss does not suit the data set.
        ModelError: the file of the user's own model, or the model to begin with, does not exist, or `data.resize` is
            less than the model takes.
        DataError: the data set has fewer samples than a step needs, its files are missing, or scikit-learn, which has
            the digits.
    """
    own = own_model(job.model.name)
    begin = job.model.init_from
    if begin is not None and not begin.is_file():
        raise ModelError(f"model.init_from {begin}: not found; give the file that `taihu train --save` wrote")
    check_sources(job.data.name, job.data.path)
    data = built_in_data(job.data.name)
    if data is None:
        return
    if job.data.name not in _FILES_OF_ANY_LENGTH:
        check_batch(job.data.name, data.samples, job.train.batch, job.cluster.workers)
    find_loss(job.train.loss, "classes", data.classes, job.train.label_smoothing)
    if own is None and layers_file(job.model.name) is None and job.data.size is not None:
        check_model_fits(job.model.name, (*job.data.size, data.shape[2]))
