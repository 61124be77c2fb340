"""Batches made while the step before computes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.core.system.pools import Future, ThreadPoolExecutor
from taihu.worker.data.base.dataset import Targets
from taihu.worker.data.batches import Batches

Batch = tuple[NDArray[np.float32], Targets]


class LoadAhead:
    """The batches of `batches`, of which the next one is made by a thread while one is used.

    The inputs of a batch lie in one of two buffers: they are valid until the next batch is asked for.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._buffers = [np.empty(batches.shape, np.float32) for _ in range(2)]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._coming: tuple[int, Future[Batch]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in one pass over the training set."""
        return self._batches.steps_per_epoch

    def batch(self, step: int) -> Batch:
        """The batch of `step`, while the thread begins with the next one.

        Raises:
            DataError: what the batch needs cannot be read.
        """
        coming = self._coming
        if coming is None or coming[0] != step:
            coming = step, self._start(step)
        batch = coming[1].result()
        self._coming = step + 1, self._start(step + 1)
        return batch

    def __enter__(self) -> LoadAhead:
        return self

    def __exit__(self, *raised: object) -> None:
        """Make no further batches; one that is being made is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self, step: int) -> Future[Batch]:
        # The one thread makes them in turn, so that none is written while another has its buffer.
        return self._thread.submit(self._batches.batch, step, self._buffers[step % 2])
