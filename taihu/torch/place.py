"""This process's place among those that train together: the job, its rank, and where others reach it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taihu.coordination.listener import ListenOptions
from taihu.errors import ConfigError
from taihu.job import Job, revised
from taihu.job.environment import (
    coordinator_from_environment,
    number_from_environment,
    rank_from_environment,
    resolve_job,
    tables_of,
)
from taihu.launch.discovery import find_coordinator
from taihu.wire.address import is_loopback, join_address, split_address
from taihu.words import counted

__all__ = ["Place", "find_place"]

Tables = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Place:
    """The place of a worker; a `job` whose exchange returns what this adapter needs.

    Attributes:
        job: of all processes.
        rank: of this one among the workers.
        listen: where the other workers reach it.
    """

    job: Job
    rank: int
    listen: ListenOptions

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to exchange anything with."""
        return self.job.cluster.workers == 1


def find_place(job: str | Path | Mapping[str, object] | None, settings: Tables) -> Place:
    """The place that a launcher's environment, the job and `settings` tell, in rising precedence.

    Without any launcher, and without a coordinator in the job, this process is alone.

    Raises:
        ConfigError: they contradict each other, or something is missing.
    """
    rank = rank_from_environment(os.environ, "worker")
    path, tables = _tables(job, settings)
    resolved = resolve_job(path, (), tables, launched=True)
    if rank is None and resolved.cluster.coordinator is None and coordinator_from_environment(os.environ) is None:
        rank = 0
        resolved = revised(resolved, "cluster", workers=1)
        resolved = revised(resolved, "exchange", kind="ring")
    if "returns" not in resolved.exchange.model_fields_set:
        resolved = revised(resolved, "exchange", returns="script" if resolved.servers else "gradients")
    if rank is None:
        raise ConfigError("rank unknown: start the script by `taihu run`, torchrun or mpirun, or set TAIHU_RANK")
    if not 0 <= rank < resolved.cluster.workers:
        raise ConfigError(
            f"rank {rank}: outside the world of {counted(resolved.cluster.workers, 'worker')}; start as many "
            "processes as cluster.workers says"
        )
    resolved = find_coordinator(resolved)
    return Place(resolved, rank, _listening(resolved, rank))


def _tables(
    job: str | Path | Mapping[str, object] | None, settings: Tables
) -> tuple[Path | None, dict[str, dict[str, object]]]:
    """The path of a job file, and the tables that come after it."""
    path = Path(job) if isinstance(job, (str, Path)) else None
    if path is None and job is None and "TAIHU_JOB" in os.environ:
        path = Path(os.environ["TAIHU_JOB"])
    return path, tables_of(job if isinstance(job, Mapping) else {}, settings)


def _listening(job: Job, rank: int) -> ListenOptions:
    """The address that a launcher gives; else this machine's alone where the coordinator is here, or any."""
    given = os.environ.get("TAIHU_BIND", "")
    coordinator = job.cluster.coordinator
    if not given and coordinator is not None and is_loopback(coordinator):
        host, port = split_address(coordinator)
        hosts = rank == 0 and not job.servers
        given = join_address(host, port if hosts else 0)
    direct = number_from_environment(os.environ, "DIRECT_PORT") or 0
    return ListenOptions(given, os.environ.get("TAIHU_ADVERTISE", ""), direct, job.patience)
