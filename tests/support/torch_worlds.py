"""Workers of `taihu.torch` in this process, each a thread with a world of its own, over real gRPC on free ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import torch

from support.cluster import Cluster
from support.whole_run import job_from
from taihu.coordination.listener import ListenOptions
from taihu.job import Job, revised
from taihu.torch.place import Place
from taihu.torch.world import World
from taihu.wire.address import free_port

__all__ = ["in_worlds"]

T = TypeVar("T")


def in_worlds(size: int, work: Callable[[World], T], *, servers: int = 0, **tables: Mapping[str, object]) -> list[T]:
    """The answers of `work(world)` of all workers by rank; what one raises ends the others, and is raised here."""
    torch.set_num_threads(1)
    kind = "server" if servers else "ring"
    sizes = [f"cluster.workers={size}", *([f"cluster.servers={servers}"] if servers else [])]
    job = job_from(*sizes, "exchange.returns=gradients", f"exchange.kind={kind}", **tables)
    with ExitStack() as stack:
        if servers:
            job = stack.enter_context(Cluster(job)).job
        elif size > 1:
            job = revised(job, "cluster", coordinator=f"127.0.0.1:{free_port()}")

        def life(rank: int) -> T:
            world = World(Place(job, rank, _listening(job, rank)))
            try:
                answer = work(world)
            except BaseException as error:
                world.leave(error)
                raise
            world.leave()
            return answer

        pool = stack.enter_context(ThreadPoolExecutor(size))
        return [future.result(timeout=100) for future in [pool.submit(life, rank) for rank in range(size)]]


def _listening(job: Job, rank: int) -> ListenOptions:
    hosts = rank == 0 and not job.servers and job.cluster.coordinator is not None
    return ListenOptions(str(job.cluster.coordinator) if hosts else "127.0.0.1:0")
