"""Bytes that a worker's steps take beside the states of the model: activations, and the batches themselves."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from taihu.core.job import Job
from taihu.worker.engine import Model
from taihu.worker.engine.rehearsal import rehearsed_bytes
from taihu.worker.fc.connected import tail_start
from taihu.worker.fc.footprint import TailFootprint
from taihu.worker.training.evaluation import samples_at_once
from taihu.worker.training.replica import recompute

_VALUE_BYTES: Final = 4
# Larger batches are not rehearsed: what they take follows from smaller ones.
_REHEARSED_BYTES: Final = 256 << 20
_LARGEST_REHEARSED: Final = 256


@dataclass(frozen=True)
class _Front:
    """The part of a model that runs as always; `stop` is the layer of the chain behind it, if others follow."""

    stop: int | None
    tail: TailFootprint | None


class StepMemory:
    """Bytes of a worker's activations and batches for a batch of any size; of worker 0, which tests as well.

    Batches of powers of two are rehearsed with `rehearsed_bytes`, as long as these are small; what lies between them
    or beyond is taken from the line through two.

    Args:
        job: a batch is not the job's own, everything else is.
        build: makes the model.
        spread: names of the layers that are spread over the workers.
    """

    def __init__(self, job: Job, build: Callable[[], Model], spread: Sequence[str]) -> None:
        self._job = job
        self._build = build
        self._described = model = build()
        self._input_bytes = _VALUE_BYTES * math.prod(model.input_shape)
        self._output_bytes = _VALUE_BYTES * math.prod(model.output_shape)
        self._front = _front(job, model, spread)
        of_sample = 2 * _VALUE_BYTES * max(1, model.activations)
        most = max(2, min(_LARGEST_REHEARSED, _REHEARSED_BYTES // of_sample))
        self._most = 1 << (most.bit_length() - 1)
        self._known: dict[int, int] = {}

    def activation_bytes(self, batch: int) -> int:
        """Bytes of the buffers of all layers, and of the loss's gradient, for steps of `batch` samples."""
        lower = min(1 << (batch.bit_length() - 1), self._most // 2)
        below = self._rehearsed(lower)
        slope = (self._rehearsed(2 * lower) - below) / lower if batch > lower else 0.0
        return below + math.ceil(slope * (batch - lower)) + batch * self._output_bytes

    def batch_bytes(self, batch: int) -> int:
        """Bytes of the inputs of two batches, the one in use and the next, and of one that is tested."""
        return (2 * batch + self._tested(batch)) * self._input_bytes

    def _tested(self, batch: int) -> int:
        """Samples that are tested at once."""
        return samples_at_once(self._described, batch) if self._job.train.evaluate else 0

    def _rehearsed(self, batch: int) -> int:
        if batch not in self._known:
            self._known[batch] = self._rehearse(batch)
        return self._known[batch]

    def _rehearse(self, batch: int) -> int:
        model, front = self._build(), self._front
        recompute(model, self._job, front.stop)
        tested = self._tested(batch)
        threads = self._job.cluster.threads or len(os.sched_getaffinity(0))
        held = rehearsed_bytes(model, batch, tested=tested, threads=threads, stop=front.stop)
        if front.tail is None:
            return held
        return held + front.tail.trained_bytes(batch) + (front.tail.tested_bytes(tested) if tested else 0)


def _front(job: Job, model: Model, spread: Sequence[str]) -> _Front:
    if not spread:
        return _Front(None, None)
    stop = tail_start(model)
    exchange, ranks = job.exchange, job.world.workers
    tail = TailFootprint(
        model.chain[stop:], spread, ranks=ranks, scheme=exchange.fc_scheme, inputs=exchange.fc_inputs
    )
    return _Front(stop, tail)
