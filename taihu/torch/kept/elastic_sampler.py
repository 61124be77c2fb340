"""Batches of all workers together, divided over however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data import Sampler
from typing_extensions import override

from taihu.core.base.errors import ConfigError


class ElasticSampler(Sampler[list[int]]):
    """A `batch_sampler` of which each worker draws its share: step after step all have the same samples together.

    The order is a function of the seed and the epoch, a batch is one of the order and the step, and the share one of
    the rank: where other numbers of workers go on, no sample is left out or comes twice. The samples behind the last
    whole batch come with the first ones of the order, or not at all.

    Args:
        data: the samples, or their number.
        rank: of this worker.
        workers: their number.
        batch: samples in a step of all workers together.
        batch_of_worker: samples in a step of each worker, in place of `batch`: more workers have more of them.
        shuffle: whether the order is drawn anew for each epoch.
        seed: of the orders.
        drop_last: whether samples behind the last whole batch are left out.

    Raises:
        ConfigError: some worker would have no sample in a batch.
    """

    def __init__(
        self,
        data: Sized | int,
        rank: int,
        workers: int,
        *,
        batch: int | None = None,
        batch_of_worker: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self._count = data if isinstance(data, int) else len(data)
        if (batch is None) == (batch_of_worker is None):
            raise ConfigError("ElasticSampler: give batch, of all workers together, or batch_of_worker")
        self.batch = batch if batch is not None else (batch_of_worker or 0) * workers
        """Samples of all workers in a step."""
        if self.batch < workers or self._count < self.batch:
            raise ConfigError(
                f"ElasticSampler: a batch of {self.batch} of {self._count} samples for {workers} workers: expected "
                "one sample for each worker at least, and no more than there are"
            )
        self._begin, self._end = self.batch * rank // workers, self.batch * (rank + 1) // workers
        self.weight = (self._end - self._begin) * workers / self.batch
        """The weight of this worker's mean loss in that of all workers; 1 where shares are equal."""
        self._shuffle, self._seed, self._drops_last = shuffle, seed, drop_last
        self._epoch = 0
        self._seen = 0

    def set_epoch(self, epoch: int) -> None:
        """Have the next pass in the order of an epoch."""
        self._epoch = epoch

    def seek(self, samples: int) -> None:
        """Have the next pass, and no other, begin behind so many samples of all workers."""
        self._seen = samples

    def __len__(self) -> int:
        """The number of batches in a whole pass."""
        return self._count // self.batch if self._drops_last else -(-self._count // self.batch)

    @override
    def __iter__(self) -> Iterator[list[int]]:
        seen, self._seen = self._seen, 0
        order = np.arange(self._count)
        if self._shuffle:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(self._count)
        stop = self._count - self.batch + 1 if self._drops_last else self._count
        for start in range(seen, stop, self.batch):
            yield order.take(range(start + self._begin, start + self._end), mode="wrap").tolist()
