"""Servers and PyTorch loops of one job in this process: a thread for each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from support.cluster import Cluster
from taihu.coordination.listener import ListenOptions
from taihu.job import Job
from taihu.torch.place import Place
from taihu.torch.world import World

__all__ = ["script_job", "with_servers"]

T = TypeVar("T")


def script_job(workers: int = 3, servers: int = 2, **exchange: Any) -> Job:
    """A job of scripts that servers may update for."""
    return Job.model_validate(
        {
            "cluster": {"servers": servers, "workers": workers},
            "exchange": {"returns": "script", "timeout_s": 20.0, **exchange},
        }
    )


def with_servers(job: Job, work: Callable[[World], T]) -> list[T]:
    """What `work` returns for each worker, by rank; every worker leaves as its script's end would have it.

    Raises:
        BaseException: what the first worker raised that did.
    """

    def life(rank: int) -> T:
        world = World(Place(cluster.job, rank, ListenOptions("127.0.0.1:0")))
        try:
            result = work(world)
        except BaseException as error:
            world.leave(error)
            raise
        world.leave()
        return result

    with Cluster(job) as cluster, ThreadPoolExecutor(job.cluster.workers) as pool:
        futures = [pool.submit(life, rank) for rank in range(job.cluster.workers)]
        return [future.result(timeout=60) for future in futures]
