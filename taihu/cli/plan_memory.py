"""`taihu plan --memory`: what a job takes in every process, and whether so much is free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import typer

from taihu.compression import make_compressor
from taihu.coordination.planning import FRAME_BYTES, is_computed
from taihu.errors import ConfigError
from taihu.job import Job, load_job
from taihu.layout import Layout, TensorSpec
from taihu.local.display import human_bytes
from taihu.optimization import OptimizerState
from taihu.planner.fc_mode import FcJob, FcLayer, FcLinks, choose_fc
from taihu.planner.groups import cap_groups, plan_groups
from taihu.planner.memory import (
    MemoryJob,
    MemoryUse,
    cheapest_fit,
    job_memory,
    most_live_bytes,
    server_memory,
    worker_memory,
)
from taihu.results import check_writable, write_json
from taihu.wire.codec import BYTES_PER_VALUE
from taihu.wire.headers import ValueType
from taihu.words import counted, parse_bytes
from worker.data.load import load_dataset
from worker.engine import Model, build_model
from worker.fc.hybrid import fully_connected_layers

__all__ = [
    "free_bytes",
    "memory_job",
    "plan_memory",
]

_NOT_COUNTED: Final = "activations, the data set and Python itself are not counted"


def plan_memory(job: Job, free_worker: str | None, free_server: str | None, json_file: Path | None) -> None:
    """Print what the processes of `job` take, beside what is free; `free_worker` and `free_server` as in `4GB`.

    Raises:
        ConfigError: it does not fit; the cheapest settings with which it does are named. Or a size is none, or the
            model or its data cannot be found.
    """
    check_writable(json_file)
    room = _room(job, free_worker, free_server)
    model = _model(job)
    memory = memory_job(job, model.layout, [layer.name for layer in fully_connected_layers(model)])
    rows = list(_rows(memory, room))
    short = next((row for row in rows if row.use.total > row.free), None)
    remedy = None if short is None else _remedy(job, memory, room)
    live_bytes = None
    if memory.zero == 3 and short is None:
        live_bytes = most_live_bytes(memory, room.worker, machine_free=room.machine)
    for line in (_title(job, memory), *_table(rows), _NOT_COUNTED, *_advice(memory, live_bytes)):
        typer.echo(line)
    if json_file is not None:
        found = {"fits": short is None, "remedy": remedy, "most_live_bytes": live_bytes}
        write_json(json_file, {**_as_json(job, memory, rows), **found})
    if short is not None:
        raise ConfigError(_complaint(short, remedy))


def memory_job(job: Job, layout: Layout, connected: Sequence[str] = ()) -> MemoryJob:
    """The facts that the memory of `job` depends on, with a model of `layout`, which ends with `connected` layers.

    Computed plans are not known before the job has been measured: their groups are taken to be full buckets. Neither
    is known what `exchange.fc` = 'auto' spreads over the workers: it is counted as if it were exchanged.
    """
    exchange, workers = job.exchange, job.cluster.workers
    spread = [layer for layer in layout.layers if layer.name in _spread(job, layout, connected)]
    exchanged = Layout(tuple(layer for layer in layout.layers if layer not in spread))
    copied = [layer for layer in exchanged.layers if layer.name in connected] if spread and job.zero >= 2 else []
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


def _spread(job: Job, layout: Layout, connected: Sequence[str]) -> set[str]:
    """The layers that are spread over the workers whatever the links are like."""
    if job.exchange.fc != "shard":
        return set()
    shapes = {layer.name: layer.tensors[0].shape for layer in layout.layers}
    layers = [FcLayer(name, *shapes[name]) for name in connected]
    facts = FcJob(job.train.batch, job.cluster.workers, job.servers)
    everything = len(layers) == len(layout.layers)
    choices = choose_fc(layers, facts, FcLinks(0.0, 0.0, 0.0), insist=True, leave_one=everything)
    return {choice.layer.name for choice in choices if choice.choice == "shard"}


def _columns(tensor: TensorSpec, workers: int) -> int:
    """Values of the columns of the worker that has the most."""
    columns = tensor.shape[-1]
    return tensor.elements // columns * -(-columns // workers)


def free_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process can still take: of the machine, and of its memory cgroups, version 1 or 2.

    Page cache that can be dropped counts as free. `root` is where `proc` and `sys` are found.

    Raises:
        ConfigError: the system does not tell.
    """
    found = re.search(r"^MemAvailable: *(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    if found is None:
        raise ConfigError("/proc/meminfo does not tell what is free; give --free-worker and --free-server")
    return min((int(found[1]) * 1024, *_left_by_cgroups(root)))


@dataclass(frozen=True)
class _Room:
    """Free bytes: for one worker, for one server, and for all together where they share this machine."""

    worker: int
    server: int
    machine: int | None


@dataclass(frozen=True)
class _Row:
    """The memory that one kind of process takes, and what is free for it."""

    key: str
    name: str
    use: MemoryUse
    free: int

    def to_json(self) -> dict[str, int]:
        """The row of the results."""
        kinds = {**asdict(self.use), "total": self.use.total, "free": self.free}
        return {f"bytes_{kind}": count for kind, count in kinds.items()}


def _model(job: Job) -> Model:
    data = load_dataset(job.data, job.model.name)
    return build_model(job.model.name, data.input_shape, data.outputs)


def _residual_arrays(job: Job) -> int:
    """fp32 values that a worker's compression keeps of every parameter."""
    if job.compression.method == "none":
        return 0
    compressor = make_compressor(
        job.compression, job.optimizer, workers=job.cluster.workers, momentum_here=job.momentum_on_workers
    )
    state = compressor.init(1, ())
    return len(state.residual) + len(state.velocity)


def _room(job: Job, free_worker: str | None, free_server: str | None) -> _Room:
    """The free bytes; who names them has machines in mind that are not this one, as has a job with a coordinator."""
    if free_worker is not None and free_server is not None:
        return _Room(_parse_size("--free-worker", free_worker), _parse_size("--free-server", free_server), None)
    here = free_bytes()
    if free_worker is None and free_server is None:
        return _Room(here, here, here if job.cluster.coordinator is None else None)
    return _Room(
        here if free_worker is None else _parse_size("--free-worker", free_worker),
        here if free_server is None else _parse_size("--free-server", free_server),
        None,
    )


def _parse_size(option: str, text: str) -> int:
    size = parse_bytes(text)
    if size is None:
        raise ConfigError(f"{option} {text}: expected a number with B, kB, MB, GB or TB, for example 4GB")
    return round(size)


def _rows(memory: MemoryJob, room: _Room) -> Iterator[_Row]:
    yield _Row("worker", "worker", worker_memory(memory), room.worker)
    if memory.servers:
        yield _Row("server", "server", server_memory(memory), room.server)
    if room.machine is not None:
        yield _Row("all", f"all {memory.workers + memory.servers}", job_memory(memory), room.machine)


def _title(job: Job, memory: MemoryJob) -> str:
    spread = (
        f", and {counted(len(memory.spread_elements), 'layer')} spread over workers" if memory.spread_elements else ""
    )
    servers = counted(memory.servers, "server") if memory.servers else "no servers"
    members = f"{servers}, {counted(memory.workers, 'worker')}"
    return f"{job.model.name}: {memory.elements:,} parameters{spread}, {members}, exchange.zero = {memory.zero}"


def _table(rows: Iterable[_Row]) -> Iterator[str]:
    yield _line("process", (*asdict(MemoryUse()), "total", "free"))
    for row in rows:
        yield _line(row.name, map(human_bytes, row.to_json().values()))


def _line(name: str, cells: Iterable[str]) -> str:
    return f"{name:<10}" + "".join(f"{cell:>12}" for cell in cells)


def _as_json(job: Job, memory: MemoryJob, rows: Iterable[_Row]) -> dict[str, Any]:
    named = {row.key: row.to_json() for row in rows}
    return {
        "model": job.model.name,
        "parameters": memory.elements,
        "servers": memory.servers,
        "workers": memory.workers,
        "zero": memory.zero,
        **{key: named.get(key) for key in ("worker", "server", "all")},
    }


def _advice(memory: MemoryJob, live_bytes: int | None) -> Iterator[str]:
    """Advice on spending free memory to have fewer bytes of traffic."""
    if live_bytes is not None and live_bytes > memory.parameter_window_bytes:
        yield (
            f"with exchange.live_bytes = {live_bytes} a worker would keep {human_bytes(live_bytes)} of parameters "
            "from forward to backward, which are then fetched once; leave room for what is not counted"
        )


def _remedy(job: Job, memory: MemoryJob, room: _Room) -> str | None:
    stages = [stage for stage in (1, 2, 3) if _allows(job, stage)]
    return cheapest_fit(memory, room.worker, room.server, machine_free=room.machine, stages=stages)


def _allows(job: Job, stage: int) -> bool:
    """Whether the job's other settings go with this stage of ZeRO."""
    try:
        load_job(None, job.model_dump(exclude={"name"}), {"exchange": {"zero": stage}})
    except ConfigError:
        return False
    return True


def _complaint(row: _Row, remedy: str | None) -> str:
    who = f"{row.name} processes together take" if row.key == "all" else f"a {row.name} takes"
    needed = f"{who} {human_bytes(row.use.total)} where {human_bytes(row.free)} are free"
    if remedy is None:
        return f"{needed}; no exchange.zero or cluster.servers that the job allows helps: take larger machines"
    return f"{needed}; set {remedy}"


def _left_by_cgroups(root: Path) -> Iterator[int]:
    """Bytes that the memory cgroups of this process leave, each limit on its own."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left_below(mount, path, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _left_below(mount / "memory", path, names)


def _left_below(mount: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """Bytes that are left by the group at `path` and by those that it belongs to.

    In a container `path` may be one of the host, of which only `mount` itself can be seen.
    """
    group = PurePosixPath(path.lstrip("/"))
    limit_file, used_file, cache = names
    for part in (group, *group.parents):
        limit, used = _read(mount / part / limit_file).strip(), _read(mount / part / used_file).strip()
        if limit.isdecimal() and used.isdecimal():
            dropped = re.search(rf"^{cache} (\d+)$", _read(mount / part / "memory.stat"), re.MULTILINE)
            yield max(0, int(limit) - int(used) + (int(dropped[1]) if dropped else 0))


def _read(path: Path) -> str:
    """The text of the file; nothing where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
