"""The members of a run that have something to keep, and where a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.ended import EndedRun, kept_end
from taihu.core.checkpoint.places import Place, place_of, setting_of
from taihu.core.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job import Job
from taihu.core.job.sizes import are_of_one_run

_NONE: Final = Path("none")
_COMPRESSION: Final = "compression."


def checkpoint_folder(job: Job) -> Place | None:
    """The folder of the job's checkpoints; None where there are none."""
    folder = job.checkpoint.dir
    return None if folder is None or folder == _NONE else place_of(folder)


def recovers(job: Job) -> bool:
    """Whether the members of the job begin again from a checkpoint when one of them is lost."""
    return checkpoint_folder(job) is not None and job.checkpoint.restarts > 0


def used_up(job: Job, how: str) -> str:
    """The words for a loss behind which nobody is started again: that happened too often; `how` says what goes on."""
    told = f"checkpoint.restarts = {job.checkpoint.restarts} within an hour are used up"
    return f"{told}; go on with: {how}" if how else f"{told}, and there is no checkpoint to go on from"


def going_on(job: Job, step: int) -> Job:
    """`job` from the checkpoint of `step` in its folder, or as it is for step 0.

    Raises:
        CheckpointError: it has no folder.
    """
    if not step:
        return from_beginning(job)
    folder = checkpoint_folder(job)
    if folder is None:
        raise CheckpointError(f"the run goes on from step {step:,}, and this process has no checkpoint.dir")
    checkpoint = job.checkpoint.model_copy(update={"resume": setting_of(CheckpointStore(folder).folder_of(step))})
    model = job.model.model_copy(update={"init_from": None, "init_skip": ()})
    return job.model_copy(update={"checkpoint": checkpoint, "model": model})


def from_beginning(job: Job) -> Job:
    """`job` where there is no checkpoint that `auto` would stand for."""
    if not job.checkpoint.resumes_auto:
        return job
    return job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"resume": None})})


def newest_of(job: Job) -> Checkpoint | None:
    """The newest checkpoint in the job's folder that is whole; None where none was completed.

    Raises:
        CheckpointError: all are damaged: to begin anew would lose them.
    """
    folder = checkpoint_folder(job)
    if folder is None or not CheckpointStore(folder).steps():
        return None
    return CheckpointStore(folder).newest()[0]


def finished(job: Job) -> Checkpoint | None:
    """The last checkpoint of the job where it goes on by itself and all of its steps have been made; None elsewhere.

    Whoever starts its processes again finds it so, too: there is nothing left to do.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    folder = checkpoint_folder(job)
    if folder is None or not job.checkpoint.resumes_auto:
        return None
    for step in CheckpointStore(folder).steps()[:1]:
        newest = CheckpointStore(folder).open(step)
        manifest = newest.manifest
        return (
            newest
            if step >= manifest.total_steps and are_of_one_run(manifest.settings, job.shared_settings)
            else None
        )
    return None


def tell_finished(job: Job) -> bool:
    """Whether all steps of the job have been made, see `finished`; says so, as nothing else will happen."""
    last = finished(job)
    if last is not None:
        typer.echo(f"nothing is left to do: all {last.step:,} steps have been made, see {last.folder}")
    return last is not None


def ended_run(job: Job) -> EndedRun | None:
    """The end of a run of this job, of which not all members may have heard; None where none is kept."""
    folder = checkpoint_folder(job)
    ended = None if folder is None or not recovers(job) else kept_end(folder)
    return ended if ended is not None and are_of_one_run(ended.settings, job.shared_settings) else None


def kept_compression(job: Job) -> Mapping[str, str]:
    """The settings of `[compression]` that an earlier life of the run has chosen, by key, each value as JSON.

    None are those of a new run. A run that goes on by itself is one with the same other settings; one that is to be
    resumed may be longer.

    Raises:
        CheckpointError: the checkpoint that the job goes on from cannot be read.
    """
    resumed = job.checkpoint.resume is not None
    own = _without_compression(job.shared_settings)
    for settings in _kept_settings(job):
        if resumed or are_of_one_run(_without_compression(settings), own):
            return {key.removeprefix(_COMPRESSION): settings[key] for key in settings if key.startswith(_COMPRESSION)}
    return {}


def _kept_settings(job: Job) -> Iterator[Mapping[str, str]]:
    """All settings of what has been kept, the newest first."""
    if job.checkpoint.resume is not None and not job.checkpoint.resumes_auto:
        yield open_checkpoint(place_of(job.checkpoint.resume)).manifest.settings
        return
    folder = checkpoint_folder(job)
    if folder is None:
        return
    if not job.checkpoint.resumes_auto and (ended := kept_end(folder)) is not None:
        yield ended.settings
    store = CheckpointStore(folder)
    for step in store.steps():
        with suppress(CheckpointError):
            yield store.open(step).manifest.settings


def _without_compression(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if not key.startswith(_COMPRESSION)}


def keepers(job: Job) -> tuple[str, ...]:
    """Names of the members that have something to keep: servers with a shard, worker 0, and workers with a state.

    What all workers have alike, worker 0 keeps.
    """
    servers = job.servers if job.stage.divides_optimizer else 0
    sharded = not job.servers and job.stage.divides_optimizer
    have_own = job.compression.method.selects or sharded or job.exchange.fc != "data" or job.updates_locally
    workers = job.world.workers if have_own else 1
    return (*(f"server {index}" for index in range(servers)), *(f"worker {rank}" for rank in range(workers)))


def resumed_from(job: Job) -> Checkpoint | None:
    """The checkpoint that the job goes on from, if it does.

    Raises:
        CheckpointError: there is none, or its manifest is damaged.
    """
    return None if job.checkpoint.resume is None else open_checkpoint(place_of(job.checkpoint.resume))
