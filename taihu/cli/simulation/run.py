"""`taihu simulate` with a job: the step of it, or of one for each row of a sweep, told and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import typer

from taihu.cli.simulation.inputs import Work, machines_of, work_of
from taihu.errors import ConfigError
from taihu.job import Job, load_job
from taihu.job.advice import advice
from taihu.local.display import human_bytes
from taihu.planner.memory import MemoryUse, server_memory, worker_memory
from taihu.results import RESULTS_FORMAT, check_writable, write_json
from taihu.simulation.job import Simulated, simulate_job
from taihu.simulation.placement import Placement
from taihu.trace.merging import trace_of
from taihu.trace.parts import write_trace
from taihu.words import aligned, counted
from worker.training.planned_memory import memory_job

__all__ = ["Asked", "run_simulation", "swept"]

_KEYS: Final = ("nodes", "servers")
_COLUMNS: Final = (
    "step s",
    "compute s",
    "compress s",
    "exchange s",
    "wait s",
    "efficiency",
    "speed-up",
    "sent",
    "received",
)


@dataclass(frozen=True)
class Asked:
    """The options of the command beside those of the job."""

    network: str | None = None
    profile: Path | None = None
    servers_beside: bool = False
    sweep: str | None = None
    picture: Path | None = None
    distinct: bool = False
    trace: Path | None = None
    json_file: Path | None = None


def run_simulation(job: Job, asked: Asked) -> None:
    """Simulate, print, and write what is asked for.

    Raises:
        ConfigError: something asked for is wrong, or cannot be simulated.
    """
    check_writable(asked.json_file, asked.trace, asked.picture)
    if asked.picture is not None and asked.sweep is None:
        raise ConfigError(f"--picture {asked.picture}: of which rows? give --sweep nodes=2..1024 as well")
    if asked.trace is not None and asked.sweep is not None:
        raise ConfigError(f"--trace {asked.trace}: of one job; leave --sweep out")
    if asked.servers_beside and not job.servers:
        raise ConfigError("--servers-beside: workers in a ring have no servers; leave it out")
    for line in advice(job):
        typer.echo(f"warning: {line}", err=True)
    jobs = [job] if asked.sweep is None else [_with(job, key, value) for key, value in swept(asked.sweep)]
    work = work_of(job, asked.profile)
    network, machines = machines_of(asked.network, work)
    placement = Placement(network, machines, asked.servers_beside, job.train.seed, asked.distinct)
    rows = [_simulated(each, work, placement, traced=asked.trace is not None) for each in jobs]
    for line in _described(job, work, placement, rows):
        typer.echo(line)
    if asked.trace is not None:
        write_trace(asked.trace, trace_of(rows[0].step.parts))
    if asked.picture is not None:
        from taihu.cli.simulation.picture import draw  # noqa: PLC0415 - only drawing needs matplotlib

        draw(asked.picture, str(asked.sweep).partition("=")[0], [row.to_json() for row in rows])
    if asked.json_file is not None:
        facts = _facts(job, work, placement)
        results = rows[0].to_json() if asked.sweep is None else {"rows": [row.to_json() for row in rows]}
        write_json(asked.json_file, {"format": RESULTS_FORMAT, **facts, **results})


def swept(sweep: str) -> list[tuple[str, int]]:
    """The values of a sweep: `nodes=2..1024` doubles from 2 on and ends with 1024, `nodes=2,3,9` is as it stands.

    Raises:
        ConfigError: it is neither.
    """
    key, _, values = sweep.partition("=")
    first, dots, last = values.partition("..")
    numbers = (first, last) if dots else values.split(",")
    if key not in _KEYS or not all(number.isdecimal() and int(number) for number in numbers):
        raise ConfigError(f"--sweep {sweep}: expected nodes=2..1024, servers=1..8 or nodes=2,3,9")
    if not dots:
        return [(key, int(number)) for number in numbers]
    value, end = int(first), int(last)
    if value > end:
        raise ConfigError(f"--sweep {sweep}: expected the first not after the last")
    found = []
    while value < end:
        found.append((key, value))
        value *= 2
    return [*found, (key, end)]


@dataclass(frozen=True)
class _Row:
    """One job's step, and the memory of its processes."""

    job: Job
    step: Simulated
    memory: dict[str, MemoryUse]

    @property
    def speed_up(self) -> float:
        """Over one worker alone."""
        return self.job.cluster.workers * self.step.efficiency

    def to_json(self) -> dict[str, Any]:
        """The row of the results."""
        return {
            "nodes": self.job.cluster.workers,
            "servers": self.job.servers,
            **self.step.to_json(),
            "speed_up": self.speed_up,
            "memory_per_process": {role: use.total for role, use in self.memory.items()},
            "memory_by_kind": {role: asdict(use) for role, use in self.memory.items()},
        }


def _simulated(job: Job, work: Work, placement: Placement, *, traced: bool) -> _Row:
    step = simulate_job(job, work.layout, work.compute_of(job), placement, work.profile, traced=traced)
    return _Row(job, step, _memory(job, work, step))


def _memory(job: Job, work: Work, step: Simulated) -> dict[str, MemoryUse]:
    """The memory of a worker, and of a server if there is one; without activations of a model that is not known."""
    if not work.knows_model:
        facts = memory_job(job, work.layout)
    else:
        activations, batches = work.model.step_bytes(job)
        facts = memory_job(job, work.layout, work.model.spreadable)
        facts = replace(facts, activation_bytes=activations, data_bytes=batches)
    facts = replace(facts, groups=step.plan.groups)
    return {"worker": worker_memory(facts)} | ({"server": server_memory(facts)} if job.servers else {})


def _with(job: Job, key: str, value: int) -> Job:
    """The job with so many workers or servers.

    Raises:
        ConfigError: there cannot be so many.
    """
    if key == "servers" and not job.servers:
        raise ConfigError("--sweep servers: workers in a ring have no servers; sweep nodes")
    name = "workers" if key == "nodes" else key
    given = job.model_dump(exclude={"name"}, exclude_unset=True)
    return load_job(None, given, {"": {"name": job.name}, "cluster": {name: value}})


def _facts(job: Job, work: Work, placement: Placement) -> dict[str, Any]:
    compression = job.compression
    return {
        "model": job.model.name,
        "parameters": work.layout.elements,
        "batch": job.train.batch,
        "exchange": job.exchange.kind,
        "compression": compression.method,
        "density": 1.0 if compression.method == "none" else compression.density,
        "zero": job.zero,
        "precision": job.train.precision,
        "recompute": job.train.recompute,
        "network": placement.network.name,
        "compute": work.compute.source,
        "seed": placement.seed,
    }


def _described(job: Job, work: Work, placement: Placement, rows: Sequence[_Row]) -> list[str]:
    """The result in lines: what was simulated, and a row for each step."""
    facts = _facts(job, work, placement)
    keys = ("exchange", "compression", "zero", "precision", "recompute")
    how = ", ".join(f"{key} {facts[key]}" for key in keys)
    compute = "measured" if work.profile is not None else "modelled (sw26010)"
    lines = [
        f"{facts['model']}: {facts['parameters']:,} parameters, batch {facts['batch']}, {how}",
        f"network {facts['network']}, compute {compute}, seed {facts['seed']}",
    ]
    header = ["nodes", "servers", "groups", *_COLUMNS]
    return [*lines, *aligned([header, *map(_cells, rows)], left=0), *_memory_lines(rows[-1], work)]


def _cells(row: _Row) -> list[str]:
    step = row.step
    seconds = (step.seconds, step.compute_seconds, step.compress_seconds, step.exchange_seconds, step.wait_seconds)
    return [
        f"{row.job.cluster.workers:,}",
        f"{row.job.servers:,}",
        f"{len(step.plan.groups):,}",
        *(f"{each:.4g}" for each in seconds),
        f"{step.efficiency:.1%}",
        f"{row.speed_up:,.1f}",
        *map(human_bytes, step.worker_bytes),
    ]


def _memory_lines(row: _Row, work: Work) -> list[str]:
    memory = ", ".join(f"{human_bytes(use.total)} a {role}" for role, use in row.memory.items())
    of = counted(row.job.cluster.workers, "node")
    activations = "without activations: the profile is of another model than the job"
    if work.knows_model:
        activations = f"with {human_bytes(row.memory['worker'].activations)} of activations, without the examples"
    lines = [
        "bytes sent and received are a worker's in a step",
        f"memory with {of}: {memory}, {activations}",
    ]
    if row.step.server_bytes is not None:
        sent, received = map(human_bytes, row.step.server_bytes)
        lines.append(f"a server's host sends {sent} and receives {received} in a step with {of}")
    return lines
