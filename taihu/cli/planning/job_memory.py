"""The facts that the memory of a job depends on: its settings, the layers of its model, and rehearsed steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from taihu.compression import make_compressor
from taihu.coordination.planning import FRAME_BYTES, is_computed
from taihu.job import Job
from taihu.layout import Layout, TensorSpec
from taihu.optimization import OptimizerState
from taihu.planner.fc_mode import FcJob, FcLinks, choose_fc
from taihu.planner.groups import cap_groups, plan_groups
from taihu.planner.largest_batch import StepBytes
from taihu.planner.memory import MemoryJob
from taihu.wire.codec import BYTES_PER_VALUE
from taihu.wire.headers import ValueType
from worker.data.dataset import Dataset
from worker.data.footprint import kept_bytes
from worker.engine import Model, build_model
from worker.fc.connected import Spreadable, spreadable
from worker.training.objective import objective
from worker.training.step_memory import StepMemory

__all__ = ["JobMemory", "memory_job"]

_NONE: Final = Spreadable()


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
            steps = self._steps[job.train.recompute] = StepMemory(job, self._build, _spread(job, self._known))
        return StepBytes(steps.activation_bytes(batch), self._kept_bytes + steps.batch_bytes(batch))


def recomputing(job: Job) -> Job:
    """`job`, with activations that are computed again."""
    return job.model_copy(update={"train": job.train.model_copy(update={"recompute": "memory"})})


def memory_job(job: Job, layout: Layout, known: Spreadable = _NONE) -> MemoryJob:
    """The facts that the memory of `job` depends on, with a model of `layout`, of which `known` can be spread.

    Activations and data are left out.

    Computed plans are not known before the job has been measured: their groups are taken to be full buckets. Neither
    is known what `exchange.fc` = 'auto' spreads over the workers: it is counted as if it were exchanged.
    """
    exchange, workers = job.exchange, job.cluster.workers
    names = _spread(job, known)
    spread = [layer for layer in layout.layers if layer.name in names]
    exchanged = Layout(tuple(layer for layer in layout.layers if layer not in spread))
    copied = [layer for layer in exchanged.layers if layer.name in known.names] if spread and job.zero >= 2 else []
    bucket_bytes = job.bucket_bytes(exchanged.elements)
    strategy = "single" if is_computed(exchange.plan) else exchange.plan
    return MemoryJob(
        layer_elements=tuple(layer.elements for layer in exchanged.layers),
        groups=cap_groups(plan_groups(exchanged, strategy), exchanged, bucket_bytes // BYTES_PER_VALUE),
        workers=workers,
        servers=job.servers,
        zero=job.zero,
        optimizer_arrays=OptimizerState(job.server_optimizer, 1).state_bytes // BYTES_PER_VALUE,
        value_bytes=ValueType.named(job.train.precision).dtype.itemsize,
        holds_gradients=job.updates_together,
        bucket_bytes=bucket_bytes,
        live_bytes=exchange.live_bytes,
        residual_arrays=_residual_arrays(job),
        # The residual, and the sums that it belongs to.
        server_residual_arrays=2 if job.downlink == "doublesqueeze" else 0,
        window_frames=exchange.window_frames,
        frame_bytes=exchange.frame_bytes or FRAME_BYTES,
        spread_elements=tuple(sum(_columns(tensor, workers) for tensor in layer.tensors) for layer in spread),
        copied_elements=sum(layer.elements for layer in copied),
    )


def _spread(job: Job, known: Spreadable) -> tuple[str, ...]:
    """The layers that are spread over the workers whatever the links are like, in forward order."""
    if job.exchange.fc != "shard":
        return ()
    facts = FcJob(job.train.batch, job.cluster.workers, job.servers)
    choices = choose_fc(known.layers, facts, FcLinks(0.0, 0.0, 0.0), insist=True, leave_one=known.leave_one)
    return tuple(choice.layer.name for choice in choices if choice.choice == "shard")


def _columns(tensor: TensorSpec, workers: int) -> int:
    """Values of the columns of the worker that has the most."""
    columns = tensor.shape[-1]
    return tensor.elements // columns * -(-columns // workers)


def _residual_arrays(job: Job) -> int:
    """fp32 values that a worker's compression keeps of every parameter."""
    if job.compression.method == "none":
        return 0
    compressor = make_compressor(
        job.compression, job.optimizer, workers=job.cluster.workers, momentum_here=job.momentum_on_workers
    )
    state = compressor.init(1, ())
    return len(state.residual) + len(state.velocity)
