"""The facts that the memory of a job depends on, but for what its batches take: its settings, and its layers."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Final

from taihu.core.compression import make_compressor
from taihu.core.coordination.plans.planning import is_computed, largest_frame_bytes
from taihu.core.job import Job
from taihu.core.job.settled import check_without_script
from taihu.core.model.layout import Layout, TensorSpec
from taihu.core.optimization import OptimizerState
from taihu.core.planner.fc_mode import FcJob, FcLinks, choose_fc
from taihu.core.planner.groups import cap_groups, plan_groups
from taihu.core.planner.memory import MemoryJob, server_memory, worker_memory
from taihu.core.wire.frames.headers import BYTES_PER_VALUE, ValueType
from taihu.worker.engine import Model
from taihu.worker.fc.connected import Spreadable, spreadable

_NONE: Final = Spreadable()


class PlannedMemory:
    """The memory of a run's processes by the plan, with the activations that its model has come to hold.

    Args:
        job: all settings.
        model: of this worker, whole and not trained yet.
    """

    def __init__(self, job: Job, model: Model) -> None:
        self._model = model
        self._facts = memory_job(job, model.layout, spreadable(model))

    def results(self) -> dict[str, dict[str, int] | None]:
        """Bytes by kind of a worker, and of a server, if there is one; without data."""
        facts = replace(self._facts, activation_bytes=self._model.held_bytes)
        server = asdict(server_memory(facts)) if facts.servers else None
        return {"planned": asdict(worker_memory(facts)), "planned_of_server": server}


def memory_job(job: Job, layout: Layout, known: Spreadable = _NONE) -> MemoryJob:
    """The facts that the memory of `job` depends on, with a model of `layout`, of which `known` can be spread.

    Activations and data are left out.

    Computed plans are not known before the job has been measured: their groups are taken to be full buckets. Neither
    is known what `exchange.fc` = 'auto' spreads over the workers: it is counted as if it were exchanged.
    """
    check_without_script(job)
    exchange, workers = job.exchange, job.world.workers
    names = spread_layers(job, known)
    spread = [layer for layer in layout.layers if layer.name in names]
    exchanged = Layout(tuple(layer for layer in layout.layers if layer not in spread))
    copies = bool(spread) and job.stage.divides_gradients
    copied = [layer for layer in exchanged.layers if layer.name in known.names] if copies else []
    bucket_bytes = job.bucket_bytes(exchanged.elements)
    strategy = "single" if is_computed(exchange.plan) else exchange.plan
    return MemoryJob(
        layer_elements=tuple(layer.elements for layer in exchanged.layers),
        groups=cap_groups(plan_groups(exchanged, strategy), exchanged, bucket_bytes // BYTES_PER_VALUE),
        workers=workers,
        servers=job.servers,
        stage=job.stage,
        optimizer_arrays=OptimizerState(job.server_optimizer, 1).state_bytes // BYTES_PER_VALUE,
        value_bytes=ValueType.named(job.train.precision).dtype.itemsize,
        holds_gradients=job.updates_together,
        bucket_bytes=bucket_bytes,
        live_bytes=exchange.live_bytes,
        residual_arrays=_residual_arrays(job),
        server_residual_arrays=_server_residual_arrays(job),
        local_arrays=_local_arrays(job),
        window_frames=exchange.window_frames,
        frame_bytes=largest_frame_bytes(job, exchanged.elements),
        spread_elements=tuple(sum(_columns(tensor, workers) for tensor in layer.tensors) for layer in spread),
        copied_elements=sum(layer.elements for layer in copied),
    )


def spread_layers(job: Job, known: Spreadable) -> tuple[str, ...]:
    """The layers that are spread over the workers whatever the links are like, in forward order."""
    if job.exchange.fc != "shard":
        return ()
    facts = FcJob(job.train.batch, job.world.workers, job.servers)
    choices = choose_fc(known.layers, facts, FcLinks(0.0, 0.0, 0.0), insist=True, leave_one=known.leave_one)
    return tuple(choice.layer.name for choice in choices if choice.choice == "shard")


def _columns(tensor: TensorSpec, workers: int) -> int:
    """Values of the columns of the worker that has the most."""
    columns = tensor.shape[-1]
    return tensor.elements // columns * -(-columns // workers)


def _server_residual_arrays(job: Job) -> int:
    """fp32 values that a server's compression keeps of every parameter."""
    if job.downlink == "doublesqueeze":
        return 2  # the residual, and the sums that it belongs to
    return int(job.compression.rounds_sums)


def _local_arrays(job: Job) -> int:
    """fp32 values that a worker keeps of every parameter for its local steps."""
    if not job.updates_locally:
        return 0
    return 1 + OptimizerState(job.optimizer, 1).state_bytes // BYTES_PER_VALUE


def _residual_arrays(job: Job) -> int:
    """fp32 values that a worker's compression keeps of every parameter."""
    if not job.compression.method.selects:
        return 0
    compressor = make_compressor(
        job.compression, job.applied_optimizer, workers=job.world.workers, momentum_here=job.momentum_on_workers
    )
    state = compressor.init(1, ())
    return len(state.residual) + len(state.velocity)
