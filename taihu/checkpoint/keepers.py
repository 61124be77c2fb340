"""The members of a run that have something to keep, and where a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from taihu.checkpoint.places import Place, place_of, setting_of
from taihu.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.checkpoint.store import CheckpointStore
from taihu.errors import CheckpointError
from taihu.job import Job

__all__ = ["checkpoint_folder", "going_on", "keepers", "recovers", "resumed_from"]

_NONE: Final = Path("none")


def checkpoint_folder(job: Job) -> Place | None:
    """The folder of the job's checkpoints; None where there are none."""
    folder = job.checkpoint.dir
    return None if folder is None or folder == _NONE else place_of(folder)


def recovers(job: Job) -> bool:
    """Whether the members of the job begin again from a checkpoint when one of them is lost."""
    return checkpoint_folder(job) is not None and job.checkpoint.restarts > 0


def going_on(job: Job, step: int) -> Job:
    """`job` from the checkpoint of `step` in its folder, or as it is for step 0.

    Raises:
        CheckpointError: it has no folder.
    """
    if not step:
        return job
    folder = checkpoint_folder(job)
    if folder is None:
        raise CheckpointError(f"the run goes on from step {step:,}, and this process has no checkpoint.dir")
    checkpoint = job.checkpoint.model_copy(update={"resume": setting_of(CheckpointStore(folder).folder_of(step))})
    model = job.model.model_copy(update={"init_from": None, "init_skip": ()})
    return job.model_copy(update={"checkpoint": checkpoint, "model": model})


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
    return None if job.checkpoint.resume is None else open_checkpoint(place_of(job.checkpoint.resume))
