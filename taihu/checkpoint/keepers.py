"""The members of a run that have something to keep, and where a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from taihu.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.job import Job

__all__ = ["checkpoint_folder", "keepers", "resumed_from"]

_NONE: Final = Path("none")


def checkpoint_folder(job: Job) -> Path | None:
    """The folder of the job's checkpoints; None where there are none."""
    folder = job.checkpoint.dir
    return None if folder is None or folder == _NONE else folder


def keepers(job: Job) -> tuple[str, ...]:
    """Names of the members that have something to keep: servers with a shard, worker 0, and workers with a state.

    What all workers have alike, worker 0 keeps.
    """
    servers = job.servers if job.zero else 0
    have_own = job.compression.method != "none" or (not job.servers and job.zero > 0) or job.exchange.fc != "data"
    workers = job.cluster.workers if have_own else 1
    return (*(f"server {index}" for index in range(servers)), *(f"worker {rank}" for rank in range(workers)))


def resumed_from(job: Job) -> Checkpoint | None:
    """The checkpoint that the job goes on from, if it does.

    Raises:
        CheckpointError: there is none, or its manifest is damaged.
    """
    return None if job.checkpoint.resume is None else open_checkpoint(job.checkpoint.resume)
