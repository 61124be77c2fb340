"""The facts that the memory of a job depends on: its settings, the layers of its model, and rehearsed steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from taihu.core.job import Job
from taihu.core.planner.largest_batch import StepBytes
from taihu.core.planner.memory import MemoryJob
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.footprint import kept_bytes
from taihu.worker.engine import Model, build_model
from taihu.worker.fc.connected import spreadable
from taihu.worker.training.objective import objective
from taihu.worker.training.planned_memory import memory_job, spread_layers
from taihu.worker.training.step_memory import StepMemory


class JobMemory:
    """The memory of a job and of variants of it, which train the same model on the same data.

    Args:
        job: with its data set, one of the variants.
        dataset: what is trained on.
    """

    def __init__(self, job: Job, dataset: Dataset) -> None:
        _, outputs = objective(job.train, dataset)
        self._build: Callable[[], Model] = partial(build_model, job.model.name, dataset.input_shape, outputs)
        self._kept_bytes = kept_bytes(dataset)
        model = self._build()
        self._layout = model.layout
        self._known = spreadable(model)
        self._steps: dict[str, StepMemory] = {}

    def of_job(self, job: Job) -> MemoryJob:
        """The facts of a variant, with its own batch."""
        activations, data = self.of_batch(job, job.train.batch)
        recomputed = None
        if job.train.recompute == "none" and not job.models_compute:
            recomputed = self.of_batch(recomputing(job), job.train.batch).activations
        return replace(
            memory_job(job, self._layout, self._known),
            activation_bytes=activations,
            recomputed_bytes=recomputed,
            data_bytes=data,
        )

    def of_batch(self, job: Job, batch: int) -> StepBytes:
        """Bytes of a worker of a variant whose batch is another."""
        steps = self._steps.get(job.train.recompute)
        if steps is None:
            steps = self._steps[job.train.recompute] = StepMemory(job, self._build, spread_layers(job, self._known))
        return StepBytes(steps.activation_bytes(batch), self._kept_bytes + steps.batch_bytes(batch))


def recomputing(job: Job) -> Job:
    """`job`, with activations that are computed again."""
    return job.model_copy(update={"train": job.train.model_copy(update={"recompute": "memory"})})
