"""What a worker reads besides its job, looked for before anything is started."""

from __future__ import annotations

from taihu.job import Job
from taihu.names import own_model
from worker.data.sources import check_sources

__all__ = ["check_inputs"]


def check_inputs(job: Job) -> None:
    """Check that the files of the job's model and data set are on this machine; none of them is read.

    Raises:
        ModelError: the file of the user's own model does not exist.
        DataError: the data set's files are missing, or scikit-learn, which has the digits.
    """
    own_model(job.model.name)
    check_sources(job.data.name, job.data.path)
