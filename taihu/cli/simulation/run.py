"""`taihu simulate` with a job: the step of it, or of one for each row of a sweep, told and written."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import typer

from taihu.cli.simulation.inputs import Work, machines_of, work_of
from taihu.cli.simulation.tables import Row, described, facts_of
from taihu.core.base.errors import ConfigError
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.job import Job, load_job
from taihu.core.job.advice import advice
from taihu.core.planner.memory import MemoryUse, server_memory, worker_memory
from taihu.core.process.results import RESULTS_FORMAT, check_writable, write_json
from taihu.core.trace.merging import trace_of
from taihu.core.trace.parts import write_trace
from taihu.simulation.from_start import simulate_first_steps
from taihu.simulation.job import Simulated, simulate_job
from taihu.simulation.loss import Loss, simulate_loss
from taihu.simulation.placement import Placement
from taihu.worker.training.planned_memory import memory_job

_KEYS: Final = ("nodes", "servers")


# worker:3@12.5+20
_LOSS: Final = re.compile(
    r"(worker|server):([0-9]{1,5})@([0-9]{1,9}(?:\.[0-9]{1,9})?)(?:\+([0-9]{1,9}(?:\.[0-9]{1,9})?))?"
)
_RESTART_S: Final = 10.0


@dataclass(frozen=True)
class Asked:
    """The options of the command beside those of the job."""

    network: str | None = None
    profile: Path | None = None
    servers_beside: bool = False
    sweep: str | None = None
    picture: Path | None = None
    distinct: bool = False
    from_start: int | None = None
    lose: str | None = None
    trace: Path | None = None
    json_file: Path | None = None


def run_simulation(job: Job, asked: Asked) -> None:
    """Simulate, print, and write what is asked for.

    Raises:
        ConfigError: something asked for is wrong, or cannot be simulated.
    """
    check_writable(asked.json_file, asked.trace, asked.picture)
    if asked.picture is not None and asked.sweep is None:
        raise ConfigError(f"--out {asked.picture}: a picture of which rows? give --sweep nodes=2..1024 as well")
    if asked.trace is not None and asked.sweep is not None:
        raise ConfigError(f"--trace {asked.trace}: of one job; leave --sweep out")
    of_one = {"--from-start": asked.from_start, "--lose": asked.lose}
    given = [f"{name} {value}" for name, value in of_one.items() if value is not None]
    if given and asked.sweep is not None:
        raise ConfigError(f"{given[0]}: of one job; leave --sweep out")
    if len(given) > 1:
        raise ConfigError(f"{given[1]}: of a run whose plan is settled; leave --from-start out")
    if asked.servers_beside and not job.servers:
        raise ConfigError("--servers-beside: workers in a ring have no servers; leave it out")
    for line in advice(job):
        typer.echo(f"warning: {line}", err=True)
    jobs = [job] if asked.sweep is None else [_with(job, key, value) for key, value in swept(asked.sweep)]
    work = work_of(job, asked.profile)
    network, machines = machines_of(asked.network, work)
    placement = Placement(network, machines, asked.servers_beside, job.train.seed, asked.distinct)
    rows = [_simulated(each, work, placement, asked) for each in jobs]
    for line in described(job, work, placement, rows):
        typer.echo(line)
    if asked.trace is not None:
        write_trace(asked.trace, trace_of(rows[0].parts))
    if asked.picture is not None:
        from taihu.cli.simulation.picture import draw  # noqa: PLC0415 - only drawing needs matplotlib

        draw(asked.picture, str(asked.sweep).partition("=")[0], [row.to_json() for row in rows])
    if asked.json_file is not None:
        facts = facts_of(job, work, placement)
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


def loss_of(text: str) -> Loss:
    """The loss that `worker:3@12.5+20` names: of whom, after so many seconds, and back so many later, 10 by default.

    Raises:
        ConfigError: it names none.
    """
    found = _LOSS.fullmatch(text)
    if found is None or not float(found[3]):
        raise ConfigError(
            f"--lose {text}: expected a member, the second at which it is lost, above 0, and after how many more it "
            "is back, for example worker:3@12.5+20"
        )
    role, rank, at_s, restart_s = found.groups()
    return Loss(MemberId(Role(role), int(rank)), float(at_s), float(restart_s or _RESTART_S))


def _simulated(job: Job, work: Work, placement: Placement, asked: Asked) -> Row:
    traced = asked.trace is not None
    what = job, work.layout, work.compute_of(job), placement, work.profile
    if asked.from_start is None:
        recovery = None if asked.lose is None else simulate_loss(*what, loss_of(asked.lose), traced=traced)
        step = simulate_job(*what, traced=traced and recovery is None)
        return Row(job, step, _memory(job, work, step), recovery=recovery)
    first = simulate_first_steps(*what, asked.from_start, traced=traced)
    return Row(job, first.step, _memory(job, work, first.step), first)


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
