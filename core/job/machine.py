"""Limits of one machine that a job may exceed: known only where its processes start."""

from __future__ import annotations

import os
import resource
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job

_THREADS_PER_CORE: Final = 4
_PROCESSES_PER_CORE: Final = 16
_PROCESSES_ANYWHERE: Final = 64
# A pipe to each, one from it, and its log; while one is started both ends are open.
_FILES_PER_PROCESS: Final = 3
_FILES_OF_ONE: Final = 32


def check_threads(job: Job, cores: int | None = None) -> None:
    """Raise ConfigError for more than four threads a core of this machine."""
    cores = cores or len(os.sched_getaffinity(0))
    most = _THREADS_PER_CORE * cores
    if job.cluster.threads > most:
        raise ConfigError(
            f"cluster.threads: expected at most {most}, four for each of this machine's {cores} cores, got "
            f"{job.cluster.threads}; 0 takes all cores"
        )


def check_processes(job: Job, cores: int | None = None) -> None:
    """Raise ConfigError for a whole job of more processes than one machine can start."""
    cores = cores or len(os.sched_getaffinity(0))
    most = max(_PROCESSES_ANYWHERE, _PROCESSES_PER_CORE * cores)
    processes = job.servers + job.world.workers
    if processes > most:
        raise ConfigError(
            f"cluster: {job.servers} servers and {job.world.workers} workers are {processes} processes, expected "
            f"at most {most} on this machine of {cores} cores; start them on several machines"
        )
    files, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], _FILES_PER_PROCESS * processes + _FILES_OF_ONE
    if files != resource.RLIM_INFINITY and files < needed:
        raise ConfigError(
            f"cluster: {processes} processes are watched by one that has about {needed} files open, and may open "
            f"{files}; ulimit -n {max(1024, 2 * needed)} raises that"
        )


def share_of_threads(job: Job, workers: int | None = None) -> int:
    """The threads of each of so many workers here, by default all of the job's, as it says or an equal share."""
    return job.cluster.threads or max(1, (os.cpu_count() or 1) // (workers or job.world.workers))
