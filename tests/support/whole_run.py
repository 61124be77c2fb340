"""Whole runs in this process: a job's servers and workers each in a thread, over real connections on free ports.

They are the daemons that processes run, and come to the same bits; what a process adds is in tests/end_to_end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from support.cluster import Cluster
from taihu.allreduce.rendezvous import listen_for_peers
from taihu.core.coordination.listener import Listener, ListenOptions
from taihu.core.job import Job, load_job
from taihu.core.job.reading import parse_assignments
from taihu.core.job.run_folder import RunFiles
from taihu.local.results import results_of
from taihu.worker.daemon import WorkerDaemon
from taihu.worker.options import WorkerOptions

__all__ = ["hosted", "job_from", "run_here"]


def job_from(*assignments: str, **sections: Mapping[str, object]) -> Job:
    """The job of a run in this process, from assignments as those of `--set`, and tables over them."""
    # Kernels may have to be compiled: nobody is lost meanwhile.
    here = {"cluster": {"threads": 1, "heartbeat_s": 0.1, "lost_after_s": 60.0, "connect_timeout_s": 60.0}}
    return load_job(None, here, parse_assignments(assignments), sections)


def run_here(*assignments: str, model: Path | None = None) -> dict[str, Any]:
    """The results of a whole run, put together as those of `taihu train`; worker 0 saves to `model`."""
    # To print what all steps tell takes longer than they do.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with hosted(job_from(*assignments)) as (job, listeners), ThreadPoolExecutor(job.cluster.workers) as pool:
        workers = []
        for rank, listener in enumerate(listeners):
            files = RunFiles(model=model if rank == 0 else None)
            workers.append(WorkerDaemon(job, WorkerOptions(rank, listener=listener, files=files)))
        ended = [pool.submit(worker.run) for worker in workers]
        return results_of(job, [each.result(timeout=220) for each in ended])


@contextmanager
def hosted(job: Job) -> Iterator[tuple[Job, list[Listener | None]]]:
    """Servers, or a place where workers meet: the job with its coordinator's address, and a listener each."""
    ranks = range(job.cluster.workers)
    if job.servers:
        with Cluster(job) as cluster:
            meets = cluster.job.workers_meet
            yield cluster.job, [_listener_of(cluster.job, rank) if meets else None for rank in ranks]
            cluster.join()
            assert not any(cluster.outcomes.values())
        return
    first = _listener_of(job, 0)
    job = job.model_copy(update={"cluster": job.cluster.model_copy(update={"coordinator": first.address})})
    yield job, [first, *(_listener_of(job, rank) for rank in ranks[1:])]


def _listener_of(job: Job, rank: int) -> Listener:
    return listen_for_peers(job, rank, ListenOptions("127.0.0.1:0"))
