"""Memory of a job in every process, by stage of ZeRO, and the change that makes it fit (docs/methods.md section 5).

Stage 0 divides nothing, 1 the optimizer state, 2 the gradients too, 3 the parameters too (Rajbhandari et al. 2020).
The owners are the servers, or in a ring the workers. Activations and data are given: they depend on the model's
layers and on the batch, the largest of which `taihu.core.planner.largest_batch` finds.

Layers are numbered in backward order (0 is the output side), as in `taihu.core.model.layout`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import product
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.planner.groups import Group, gradient_room, parameter_room
from taihu.core.traits.stages import STAGES, Stage

_FP32_BYTES: Final = 4
_SERVER_COUNTS: Final = tuple(1 << power for power in range(7))


@dataclass(frozen=True)
class MemoryJob:
    """The facts that the memory of a job depends on.

    Attributes:
        layer_elements: parameters of every layer that is exchanged.
        groups: of layers, those that stages 2 and 3 hold at once; they cover every layer in order.
        workers: how many there are.
        servers: how many there are; 0 in a ring.
        stage: of ZeRO.
        optimizer_arrays: fp32 values of optimizer state per parameter: 0 for plain SGD, 1 with momentum, 2 for Adam.
        value_bytes: of a parameter or gradient that is exchanged: 4, or 2 in mixed precision, where the owner keeps
            an fp32 master of the parameters beside its optimizer state; in stages 2 and 3 only.
        holds_gradients: whether workers keep all gradients of a step until it is known that they fit (fp16), or
            what their norm is.
        bucket_bytes: fp32 bytes that a group of several layers has at most.
        live_bytes: fp32 bytes of parameters that stage 3 may hold at once, where two groups are fewer.
        residual_arrays: fp32 values per parameter that a worker's compression keeps: the residual, and the velocity
            where workers apply momentum.
        server_residual_arrays: the same for a server's compression of its answers.
        local_arrays: fp32 values per parameter that a worker keeps for local steps: the parameters that all have, and
            the state of its own optimizer.
        window_frames: frames that a worker may have on their way to one server.
        frame_bytes: of the largest frame.
        spread_elements: of every layer that is spread over the workers, the parameters of the worker with the most.
            They are its own in every stage: fp32, with their optimizer state, and a bucket of one's gradient.
        copied_elements: parameters of fully connected layers at the end that are not spread, beside some that are,
            where stages 2 and 3 give their memory back: they and their gradients are copied for a step.
        activation_bytes: of a worker's activations, their gradients and what layers compute with.
        recomputed_bytes: the same where activations are computed again; None where they are, or cannot be.
        data_bytes: of the examples that a worker keeps, and of its batches.

    Raises:
        ConfigError: a number is out of its range.
    """

    layer_elements: tuple[int, ...]
    groups: tuple[Group, ...]
    workers: int
    servers: int
    stage: Stage
    optimizer_arrays: int
    value_bytes: int = _FP32_BYTES
    bucket_bytes: int = 16 << 20
    live_bytes: int = 0
    residual_arrays: int = 0
    server_residual_arrays: int = 0
    local_arrays: int = 0
    window_frames: int = 4
    frame_bytes: int = 1 << 19
    holds_gradients: bool = False
    spread_elements: tuple[int, ...] = ()
    copied_elements: int = 0
    activation_bytes: int = 0
    recomputed_bytes: int | None = None
    data_bytes: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers {self.workers}: expected at least 1")
        if self.servers < 0:
            raise ConfigError(f"servers {self.servers}: expected 0, which is a ring, or more")
        if self.value_bytes not in (2, _FP32_BYTES):
            raise ConfigError(f"value_bytes {self.value_bytes}: expected 4 (fp32), or 2 (mixed precision)")
        if self.mixed and not self.stage.divides_gradients:
            raise ConfigError(f"ZeRO stage {self.stage} with 16-bit values: expected stage 2 or 3")

    @property
    def elements(self) -> int:
        """Parameters of the model."""
        return sum(self.layer_elements)

    @property
    def mixed(self) -> bool:
        """Whether workers store 16-bit values."""
        return self.value_bytes < _FP32_BYTES

    @property
    def owner_bytes_per_parameter(self) -> int:
        """Bytes of optimizer state, in mixed precision with the master: the paper's K, 12 for Adam."""
        return _FP32_BYTES * (self.optimizer_arrays + self.mixed)

    @property
    def parameter_window_bytes(self) -> int:
        """fp32 bytes of the parameters that stage 3 holds at once: a group and the next one, or more if it may."""
        return min(_FP32_BYTES * self.elements, parameter_room(self._group_bytes(), self.live_bytes))

    @property
    def widened_bytes(self) -> int:
        """Bytes of mixed precision beside those of window and gradients, at the moment when they are most.

        A group's fp32 gradients are computed while in stage 2 its own fp32 parameters are there, and in stage 3 the
        largest group that there is room for beside it comes in 16 bits. Groups are widened one by one.
        """
        sizes = self._group_bytes()
        if not self.stage.divides_parameters:
            return 2 * self.largest_group_bytes
        room, ordered = parameter_room(sizes, self.live_bytes), sorted(sizes)
        fitting = ((own, ordered[: bisect_right(ordered, room - own)]) for own in sizes)
        return max((own + self._coming_bytes(own, others) for own, others in fitting), default=0)

    @property
    def gradient_budget_bytes(self) -> int:
        """fp32 bytes of the gradients that stage 2 holds at once: two groups, or more where they are small."""
        return min(_FP32_BYTES * self.elements, gradient_room(self._group_bytes(), self.bucket_bytes))

    @property
    def largest_group_bytes(self) -> int:
        """fp32 bytes of the largest group."""
        return max(self._group_bytes(), default=0)

    def largest_share(self, owners: int) -> int:
        """Parameters of the owner that has the most: every layer is cut for itself (`planner.partition`)."""
        return sum(-(-elements // owners) for elements in self.layer_elements)

    def _coming_bytes(self, own: int, fitting: Sequence[int]) -> int:
        """Bytes of the largest group of those `fitting`, in ascending order, beside one of `own` fp32 bytes."""
        # That one may be among them.
        others = fitting[:-1] if fitting and fitting[-1] == own else fitting
        return others[-1] * self.value_bytes // _FP32_BYTES if others else 0

    def _group_bytes(self) -> list[int]:
        sizes = (self.layer_elements[group.first_layer : group.last_layer + 1] for group in self.groups)
        return [_FP32_BYTES * sum(size) for size in sizes]


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that a process holds during a step, by what they are.

    `gradients` of a server are the sums of stage 0; `residuals` are those of error feedback, which ZeRO does not
    divide; `buffers` are frames under way, and in mixed precision the fp32 values that are computed with and the
    16-bit ones that are being fetched; `data` are examples and batches. Servers have no activations and no data.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    residuals: int = 0
    buffers: int = 0
    activations: int = 0
    data: int = 0

    @property
    def total(self) -> int:
        """The sum."""
        return sum(astuple(self))


def worker_memory(job: MemoryJob) -> MemoryUse:
    """Bytes of one worker, in a ring of the one that owns the most.

    16-bit values are widened to be computed with: in stage 2 the parameters of the group in use, in stage 3 those of
    the window, group by group as they come; and gradients become 16-bit values group by group.
    """
    whole = job.elements
    owned = _owned_by_worker(job)
    window, budget = job.parameter_window_bytes, job.gradient_budget_bytes
    # In mixed precision the master, which counts to the optimizer, is all that a ring's owner keeps of them.
    stored = whole if not job.stage.divides_parameters else owned if job.servers == 0 and not job.mixed else 0
    held = not job.stage.divides_gradients or job.holds_gradients
    spread, copied = _FP32_BYTES * sum(job.spread_elements), _FP32_BYTES * job.copied_elements
    own_gradient = min(job.bucket_bytes, _FP32_BYTES * max(job.spread_elements, default=0))
    gradients = job.value_bytes * whole if held else budget * job.value_bytes // _FP32_BYTES
    return MemoryUse(
        parameters=job.value_bytes * stored + (window if job.stage.divides_parameters else 0) + spread + copied,
        gradients=gradients + own_gradient + copied,
        optimizer=job.owner_bytes_per_parameter * owned
        + job.optimizer_arrays * spread
        + _FP32_BYTES * job.local_arrays * whole,
        residuals=_FP32_BYTES * job.residual_arrays * whole,
        buffers=job.widened_bytes if job.mixed else 0,
        activations=job.activation_bytes,
        data=job.data_bytes,
    )


def server_memory(job: MemoryJob) -> MemoryUse:
    """Bytes of the server that owns the most; nothing in a ring, which has none."""
    if not job.servers:
        return MemoryUse()
    owned = job.largest_share(job.servers)
    updates = job.stage.divides_optimizer
    return MemoryUse(
        # In mixed precision the master counts to the optimizer; what is answered is kept beside it.
        parameters=job.value_bytes * owned if updates else 0,
        gradients=0 if updates else _FP32_BYTES * owned,
        optimizer=job.owner_bytes_per_parameter * owned if updates else 0,
        residuals=_FP32_BYTES * job.server_residual_arrays * owned,
        buffers=job.workers * job.window_frames * job.frame_bytes,
    )


def held_bytes(job: MemoryJob) -> tuple[int, int]:
    """Bytes of /dev/shm in which a worker holds its last three steps and a server two, each of who holds the most.

    That is all that a checkpoint has of them: parameters in fp32 and optimizer state of who updates, in a ring
    without ZeRO worker 0 alone, and what a worker has for itself.
    """
    of_update = _FP32_BYTES * (1 + job.optimizer_arrays)
    updated = 0 if job.servers and job.stage.divides_optimizer else _owned_by_worker(job)
    own = _FP32_BYTES * (job.residual_arrays + max(0, job.local_arrays - 1)) * job.elements
    worker = own + of_update * (updated + sum(job.spread_elements))
    owned = job.largest_share(job.servers) if job.servers and job.stage.divides_optimizer else 0
    return 3 * worker, 2 * (of_update + _FP32_BYTES * job.server_residual_arrays) * owned


def job_memory(job: MemoryJob) -> MemoryUse:
    """Bytes of all processes together, each counted like the largest of its kind."""
    kinds = zip(astuple(worker_memory(job)), astuple(server_memory(job)), strict=True)
    return MemoryUse(*(job.workers * worker + job.servers * server for worker, server in kinds))


def model_state_bytes(parameters: float, devices: int, stage: Stage, optimizer_bytes: int = 12) -> float:
    """Bytes of model states per device in mixed precision, as the paper's table 1 (docs/methods.md section 5).

    Args:
        parameters: of the model.
        devices: over which they are divided.
        stage: of ZeRO.
        optimizer_bytes: per parameter, with the fp32 master; K, 12 for Adam.

    """
    sizes = (optimizer_bytes, 2, 2)
    divided = sum(size for size, is_divided in zip(sizes, stage.divided, strict=True) if is_divided)
    return parameters * (sum(sizes) - divided) + parameters * divided / devices


def fits(job: MemoryJob, worker_free: int, server_free: int, *, machine_free: int | None = None) -> bool:
    """Whether every worker and server fits into the bytes that are free for one of them.

    Where all run on one machine, `machine_free` are the bytes that are free for all of them together.
    """
    if worker_memory(job).total > worker_free or server_memory(job).total > server_free:
        return False
    return machine_free is None or job_memory(job).total <= machine_free


def most_live_bytes(job: MemoryJob, worker_free: int, *, machine_free: int | None = None) -> int:
    """The most `live_bytes` of a job of stage 3 with which its workers fit; see `fits`, which `job` does."""

    def has_room(live_bytes: int) -> bool:
        changed = replace(job, live_bytes=live_bytes)
        if worker_memory(changed).total > worker_free:
            return False
        return machine_free is None or job_memory(changed).total <= machine_free

    # More that stay may also let a larger group come beside the one in use, in 16 bits.
    fitting, beyond = job.parameter_window_bytes, _FP32_BYTES * job.elements + 1
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        fitting, beyond = (middle, beyond) if has_room(middle) else (fitting, middle)
    return fitting


def cheapest_fit(
    job: MemoryJob,
    worker_free: int,
    server_free: int,
    *,
    machine_free: int | None = None,
    stages: Sequence[Stage] = STAGES.built_in[1:],
) -> str | None:
    """The least change of settings with which `job`, which does not fit, does.

    Fewer parameters that stay come first, then higher stages, in the order of their traffic; then activations that
    are computed again, with the stages again; then more servers, a power of two up to 64.

    Args:
        job: as it is now; not tried.
        worker_free: bytes that are free for one worker.
        server_free: the same for one server.
        machine_free: see `fits`.
        stages: those that the job may change to, ascending.

    Returns:
        Settings, for example "exchange.zero = 3 and cluster.servers = 8"; None where nothing helps.
    """
    for changed in _changes(job, stages):
        if fits(changed, worker_free, server_free, machine_free=machine_free):
            return _named(job, changed)
    return None


def _owned_by_worker(job: MemoryJob) -> int:
    """Parameters that a worker updates."""
    if not job.stage.divides_optimizer:
        return job.elements
    return 0 if job.servers else job.largest_share(job.workers)


def _changes(job: MemoryJob, stages: Sequence[Stage]) -> Iterator[MemoryJob]:
    if job.stage.divides_parameters and job.live_bytes:
        yield replace(job, live_bytes=0)
    more = [count for count in _SERVER_COUNTS if count > job.servers > 0]
    stages = [stage for stage in stages if stage.key > job.stage.key]
    for servers, of_job, stage in product((job.servers, *more), _ways_to_compute(job), (job.stage, *stages)):
        changed = replace(of_job, servers=servers, stage=stage)
        if changed != job:
            yield changed


def _ways_to_compute(job: MemoryJob) -> Iterator[MemoryJob]:
    """The job as it is, and with recomputation."""
    yield job
    if job.recomputed_bytes is not None:
        yield replace(job, activation_bytes=job.recomputed_bytes, recomputed_bytes=None)


def _named(job: MemoryJob, changed: MemoryJob) -> str:
    settings = []
    if changed.live_bytes != job.live_bytes:
        settings.append(f"exchange.live_bytes = {changed.live_bytes}")
    if changed.stage != job.stage:
        settings.append(f"exchange.zero = {changed.stage}")
    if changed.recomputed_bytes != job.recomputed_bytes:
        settings.append("train.recompute = 'memory'")
    if changed.servers != job.servers:
        settings.append(f"cluster.servers = {changed.servers}")
    return " and ".join(settings)
