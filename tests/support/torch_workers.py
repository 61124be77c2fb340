"""Workers of a PyTorch loop as threads of this process, each with a world of its own: imports are paid for once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TypeVar

import torch

from support.cluster import Cluster
from taihu.core.coordination.listener import ListenOptions
from taihu.core.job import Job, revised
from taihu.core.wire.base.address import free_port
from taihu.torch.place import RunPlace
from taihu.torch.world import World

__all__ = ["on_workers", "script_job"]

T = TypeVar("T")


def script_job(workers: int, servers: int = 0, **tables: Mapping[str, object]) -> Job:
    """The job of a script with so many workers: around a ring, or through servers, which do what the script says."""
    kind, returns = ("server", "script") if servers else ("ring", "gradients")
    exchange = {"kind": kind, "returns": returns, **tables.pop("exchange", {})}
    # Kernels may have to be compiled: nobody is lost meanwhile.
    patient = {"heartbeat_s": 0.1, "lost_after_s": 60.0, "connect_timeout_s": 60.0}
    cluster = {"servers": max(servers, 1), "workers": workers, **patient, **tables.pop("cluster", {})}
    return Job.model_validate({"exchange": exchange, "cluster": cluster, **tables})


def on_workers(size: int, work: Callable[[World], T], *, servers: int = 0, **tables: Mapping[str, object]) -> list[T]:
    """The answers of `work(world)` of all workers of a `script_job`, by rank.

    Raises:
        BaseException: what one of them raised before all others, who have been told.
    """
    job = script_job(size, servers, **tables)
    with ExitStack() as stack:
        # All workers of this process share its processors.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        if servers:
            job = stack.enter_context(Cluster(job)).job
        elif size > 1:
            job = revised(job, "cluster", coordinator=f"127.0.0.1:{free_port()}")
        pool = stack.enter_context(ThreadPoolExecutor(size))
        errors: list[BaseException] = []
        lives = [pool.submit(_live, job, rank, work, errors) for rank in range(size)]
        wait(lives, timeout=100)
        if errors:
            raise errors[0]
        return [life.result(timeout=0) for life in lives]


def _live(job: Job, rank: int, work: Callable[[World], T], errors: list[BaseException]) -> T:
    hosts = rank == 0 and not job.servers
    bind = str(job.cluster.coordinator) if hosts else "127.0.0.1:0"
    world = World(RunPlace(job, rank, ListenOptions(bind, patience=job.patience)))
    try:
        answer = work(world)
    except BaseException as error:
        errors.append(error)
        world.leave(error)
        raise
    world.leave()
    return answer
