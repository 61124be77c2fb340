"""This process's place among those that train together: the job, its rank, and where others reach it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import counted
from taihu.core.coordination.discovery import find_coordinator
from taihu.core.coordination.listener import ListenOptions, listen_options
from taihu.core.job import Job, revised
from taihu.core.job.environment import (
    number_from_environment,
    rank_from_environment,
    resolve_job,
    tables_of,
)
from taihu.core.job.variables import variable_of
from taihu.core.settings import CheckpointSettings
from taihu.core.wire.base.address import is_loopback, join_address, split_address
from taihu.launch.meeting import find_meeting
from taihu.launch.place import Launch, maybe_launch, script_job, script_job_of

Tables = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class RunPlace:
    """The place of a worker; a `job` whose exchange returns what this adapter needs.

    Attributes:
        job: of all processes.
        rank: of this one among the workers.
        listen: where the other workers reach it.
        checkpoint: where a script keeps its state, see `taihu.torch.state`; the `job` has none.
    """

    job: Job
    rank: int
    listen: ListenOptions = field(default_factory=ListenOptions)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to exchange anything with."""
        return self.job.world.workers == 1


def find_place(job: str | Path | Mapping[str, object] | None, settings: Tables) -> RunPlace:
    """The place that a launcher's environment, the job and `settings` tell, in rising precedence.

    Without any launcher, and without a coordinator in the job, this process is alone. A rank that somebody has given
    this process by `TAIHU_RANK` comes before all that launchers count.

    Raises:
        ConfigError: they contradict each other, or something is missing.
    """
    path, tables = _tables(job, settings)
    place = _found(path, tables)
    # Scripts keep their own state: for the run's other processes there is none.
    kept, job_of_all = place.job.checkpoint, place.job.model_copy(update={"checkpoint": CheckpointSettings()})
    return replace(place, job=job_of_all, checkpoint=kept)


def _found(path: Path | None, tables: dict[str, dict[str, object]]) -> RunPlace:
    """The place, with a job that has all settings."""
    is_told = any(variable_of(name) in os.environ for name in ("RANK", "RANK_OFFSET"))
    launch = None if is_told else maybe_launch(os.environ)
    if launch is not None:
        return _launched_place(resolve_job(path, (), tables), launch)
    rank = rank_from_environment(os.environ, "worker")
    resolved = resolve_job(path, (), tables, launched=True)
    if rank is None and resolved.cluster.coordinator is None:
        return RunPlace(_usual(revised(revised(resolved, "cluster", workers=1), "exchange", kind="ring")), 0)
    if rank is None:
        raise ConfigError("rank unknown: start the script by `taihu run`, torchrun or mpirun, or set TAIHU_RANK")
    if not 0 <= rank < resolved.world.workers:
        raise ConfigError(
            f"rank {rank}: outside the world of {counted(resolved.world.workers, 'worker')}; start as many "
            "processes as cluster.workers says"
        )
    resolved = find_coordinator(_usual(resolved))
    return RunPlace(resolved, rank, _listening(resolved, rank))


def _launched_place(job: Job, launch: Launch) -> RunPlace:
    """The place of a process that torchrun, srun, mpirun or anybody who sets RANK and WORLD_SIZE has started."""
    job = _usual(script_job_of(job, launch))
    cluster = job.cluster
    if launch.size == 1 and not job.servers:
        return RunPlace(job, launch.rank)
    if job.servers and cluster.coordinator is None and launch.launcher != "RANK":
        raise ConfigError(
            f"{launch.launcher} started the workers and does not say where server 0 is: set cluster.coordinator, or "
            "TAIHU_CLUSTER__COORDINATOR=HOST:PORT"
        )
    if cluster.coordinator is not None:
        job = find_coordinator(job)
        return RunPlace(job, launch.rank, _listening(job, launch.rank))
    meeting = find_meeting(None, launch, cluster.connect_timeout_s)
    job = find_coordinator(revised(job, "cluster", coordinator=meeting.address))
    is_host = launch.rank == 0 and not job.servers
    return RunPlace(job, launch.rank, _listening(job, launch.rank, meeting.bind(first=is_host)))


def _usual(job: Job) -> Job:
    """`job` as scripts have it: a ring, unless servers or a way of exchanging are asked for."""
    return script_job(job, has_servers="servers" in job.cluster.model_fields_set)


def _tables(
    job: str | Path | Mapping[str, object] | None, settings: Tables
) -> tuple[Path | None, dict[str, dict[str, object]]]:
    """The path of a job file, and the tables that come after it."""
    path = Path(job) if isinstance(job, (str, Path)) else None
    if path is None and job is None and "TAIHU_JOB" in os.environ:
        path = Path(os.environ["TAIHU_JOB"])
    return path, tables_of(job if isinstance(job, Mapping) else {}, settings)


def _listening(job: Job, rank: int, usual: str = "") -> ListenOptions:
    """The address that a launcher gives; else this machine's alone where the coordinator is here, or the `usual`."""
    given = os.environ.get("TAIHU_BIND", "")
    coordinator = job.cluster.coordinator
    if not given and coordinator is not None and is_loopback(coordinator):
        host, port = split_address(coordinator)
        hosts = rank == 0 and not job.servers
        given = join_address(host, port if hosts else 0)
    direct = number_from_environment(os.environ, "DIRECT_PORT") or 0
    advertise = os.environ.get("TAIHU_ADVERTISE", "")
    return listen_options(job, "worker", rank, bind=given or usual, advertise=advertise, direct_port=direct)
