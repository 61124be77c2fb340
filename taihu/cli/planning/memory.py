"""`taihu plan memory`: what a job takes in every process, whether so much is free, and how large batches may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from taihu.cli.planning.job_memory import JobMemory
from taihu.core.base.errors import ConfigError
from taihu.core.base.words import aligned, counted, parse_bytes
from taihu.core.job import Job, Overrides, load_job
from taihu.core.planner.largest_batch import largest_batch
from taihu.core.planner.memory import (
    MemoryJob,
    MemoryUse,
    cheapest_fit,
    held_bytes,
    job_memory,
    most_live_bytes,
    server_memory,
    worker_memory,
)
from taihu.core.process.memory.free import free_bytes
from taihu.core.process.results import check_writable, write_json
from taihu.core.traits.stages import STAGES, Stage
from taihu.local.display.display import human_bytes
from taihu.worker.data.load import load_dataset

_NOT_COUNTED: Final = "Python and its libraries are not counted: about 200 MB in each process"


def plan_memory(job: Job, free_worker: str | None, free_server: str | None, json_file: Path | None) -> None:
    """Print what the processes of `job` take, beside what is free; `free_worker` and `free_server` as in `4GB`.

    Raises:
        ConfigError: it does not fit; the cheapest settings with which it does are named. Or a size is none, or the
            model or its data cannot be found.
    """
    check_writable(json_file)
    room = _room(job, free_worker, free_server)
    data = load_dataset(job.data, job.model.name)
    found = JobMemory(job, data)
    memory = found.of_job(job)
    rows = list(_rows(memory, room))
    most = len(data.train) // job.world.workers
    batches = _Batches(tuple(_largest(job, found, room, most)), most)
    short = next((row for row in rows if row.use.total > row.free), None)
    remedy = None if short is None else _remedy(job, memory, room) or batches.remedy(job)
    live_bytes = None
    if memory.stage.divides_parameters and short is None:
        live_bytes = most_live_bytes(memory, room.worker, machine_free=room.machine)
    lines = (
        _title(job, memory),
        *_table(rows),
        _NOT_COUNTED,
        *_held(job, memory),
        "",
        *batches.table(job),
        *_advice(memory, live_bytes),
    )
    for line in lines:
        typer.echo(line)
    if json_file is not None:
        held = dict(zip(("worker", "server"), held_bytes(memory) if job.may_hold_steps else (0, 0), strict=True))
        facts = {"fits": short is None, "remedy": remedy, "most_live_bytes": live_bytes, "held_bytes": held}
        write_json(json_file, {**_as_json(job, memory, rows), **facts, "largest_batches": batches.to_json()})
    if short is not None:
        raise ConfigError(_complaint(short, remedy))


def _held(job: Job, memory: MemoryJob) -> Iterator[str]:
    """A line on what is held in memory that outlives processes."""
    if job.may_hold_steps:
        worker, server = map(human_bytes, held_bytes(memory))
        servers = f", a server {server}" if job.servers else ""
        yield f"The last steps lie in /dev/shm beside that: a worker {worker}{servers} (checkpoint.in_memory)"


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


@dataclass(frozen=True)
class _Batch:
    """The largest batch with one stage of ZeRO, and activations that are computed again or not; 0: none fits."""

    stage: Stage
    recompute: str
    samples: int

    def is_of(self, job: Job) -> bool:
        """Whether stage and recomputation are the job's."""
        return (self.stage, self.recompute) == (job.stage, job.train.recompute)


@dataclass(frozen=True)
class _Batches:
    """The largest batches that the job's other settings allow; with `most` a worker has all its samples at once."""

    found: tuple[_Batch, ...]
    most: int

    def table(self, job: Job) -> Iterator[str]:
        """A line for each stage, a column for each way to compute."""
        ways = list(dict.fromkeys(batch.recompute for batch in self.found))
        by_place = {(batch.stage, batch.recompute): f"{batch.samples:,}" for batch in self.found}
        rows = [["largest batch of a worker", *(f"recompute {way}" for way in ways)]]
        for stage in dict.fromkeys(batch.stage for batch in self.found):
            own = ", as it is" if stage == job.stage else ""
            rows.append([f"exchange.zero = {stage}{own}", *(by_place.get((stage, way), "-") for way in ways)])
        yield from aligned(rows, left=1)
        if any(batch.samples == self.most for batch in self.found):
            yield f"{self.most:,} are all the samples that there are for one of so many workers"

    def remedy(self, job: Job) -> str | None:
        """The settings of the largest batch, of the job's own stage and way where one fits there."""
        own = [batch for batch in self.found if batch.is_of(job) and batch.samples]
        best = max(own or self.found, key=lambda batch: batch.samples, default=None)
        if best is None or not best.samples:
            return None
        settings = [f"train.batch = {best.samples}"]
        settings += [f"exchange.zero = {best.stage}"] if best.stage != job.stage else []
        settings += [f"train.recompute = '{best.recompute}'"] if best.recompute != job.train.recompute else []
        return " and ".join(settings)

    def to_json(self) -> list[dict[str, Any]]:
        """The rows of the results."""
        return [{"zero": of.stage.key, "recompute": of.recompute, "batch": of.samples} for of in self.found]


def _largest(job: Job, memory: JobMemory, room: _Room, most: int) -> Iterator[_Batch]:
    """The largest batch for every stage and way to compute that go with the job's other settings."""
    ways = list(dict.fromkeys(("none", "memory", job.train.recompute)))
    for stage in STAGES:
        for way in ways:
            changed = _changed(job, {"exchange": {"zero": stage}, "train": {"recompute": way}})
            if changed is None:
                continue
            of_batch = partial(memory.of_batch, changed)
            facts = memory.of_job(changed)
            samples = largest_batch(facts, of_batch, most, room.worker, room.server, machine_free=room.machine)
            yield _Batch(stage, way, samples)


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
    settings = f"batch {job.train.batch}, exchange.zero = {memory.stage}"
    return f"{job.model.name}: {memory.elements:,} parameters{spread}, {members}, {settings}"


def _table(rows: Iterable[_Row]) -> Iterator[str]:
    yield _line("process", (*asdict(MemoryUse()), "total", "free"))
    for row in rows:
        yield _line(row.name, map(human_bytes, row.to_json().values()))


def _line(name: str, cells: Iterable[str]) -> str:
    return f"{name:<9}" + "".join(f"{cell:>12}" for cell in cells)


def _as_json(job: Job, memory: MemoryJob, rows: Iterable[_Row]) -> dict[str, Any]:
    named = {row.key: row.to_json() for row in rows}
    return {
        "model": job.model.name,
        "parameters": memory.elements,
        "servers": memory.servers,
        "workers": memory.workers,
        "zero": memory.stage.key,
        "batch": job.train.batch,
        "recompute": job.train.recompute,
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
    stages = [stage for stage in STAGES if stage.divides_optimizer and _allows(job, stage)]
    return cheapest_fit(memory, room.worker, room.server, machine_free=room.machine, stages=stages)


def _allows(job: Job, stage: Stage) -> bool:
    """Whether the job's other settings go with this stage of ZeRO."""
    return _changed(job, {"exchange": {"zero": stage}}) is not None


def _changed(job: Job, settings: Overrides) -> Job | None:
    """The job with other settings; None where its own do not go with them."""
    try:
        return load_job(None, job.model_dump(exclude={"name"}), settings)
    except ConfigError:
        return None


def _complaint(row: _Row, remedy: str | None) -> str:
    who = f"{row.name} processes together take" if row.key == "all" else f"a {row.name} takes"
    needed = f"{who} {human_bytes(row.use.total)} where {human_bytes(row.free)} are free"
    if remedy is None:
        return (
            f"{needed}; no exchange.zero, train.recompute, train.batch or cluster.servers that the job allows helps: "
            "take larger machines"
        )
    return f"{needed}; set {remedy}"
