"""The first step of a worker, made on nothing by who forks all workers: what each would load is loaded once."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from taihu.core.base.errors import TaihuError
from taihu.core.job import Job
from taihu.core.model.names import MODEL_NAMES, built_in_data
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import StepContext, StepHooks
from taihu.worker.training.evaluation import TESTING
from taihu.worker.training.objective import model_for

# Of what is larger, a step takes longer than to load its kernels.
_MOST_BYTES: Final = 16 << 20
_MOST_PARAMETERS: Final = 1_000_000
_SAMPLES: Final = 2


def load_first_step(job: Job) -> None:
    """Load the data and the kernels of a small job of taihu's own data and model; do nothing for any other.

    No thread is started, nothing of the user's is executed, and what is wrong with the job is left to its workers.
    """
    known = built_in_data(job.data.name)
    if known is None or known.samples * math.prod(known.shape) > _MOST_BYTES:
        return
    with suppress(TaihuError), threadpool_limits(1):
        if job.model.name not in MODEL_NAMES:
            return
        data = load_dataset(job.data, job.model.name)
        model = model_for(job, data)
        if model.layout.elements > _MOST_PARAMETERS:
            return
        model.bind(*(np.zeros(model.layout.elements, np.float32) for _ in range(2)))
        inputs = np.zeros((_SAMPLES, *data.input_shape), np.float32)
        targets = data.train.targets(np.arange(_SAMPLES))
        model.train(inputs, targets, StepContext(training=True, seed=0, step=1, first_sample=0), StepHooks())
        model.forward(inputs, context=TESTING)
