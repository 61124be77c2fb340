"""Checkpoints of exchanges in this process, committed by the test in place of a coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.exchanges import run_workers
from support.worker import Values, Worker
from taihu.core.checkpoint.files import PartFile, hash_of, write_part
from taihu.core.checkpoint.keepers import keepers
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import Part
from taihu.core.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.model.layout import Layout

__all__ = ["commit_all", "keep", "resume", "with_checkpoints"]


def with_checkpoints(job: Job, **settings: Any) -> Job:
    """The job with these settings of `[checkpoint]`."""
    return job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update=settings)})


def keep(job: Job, worker: Worker, folder: Path, step: int) -> None:
    """Keep what `step`, all groups of which have ended, has led to, as a worker's daemon does."""
    is_first, name = worker.rank == 0, f"worker {worker.rank}"
    if is_first:
        worker.exchange.keep(step)
    if name in keepers(job):
        state = worker.exchange.state(is_first=is_first).copy()
        write_part(CheckpointStore(folder).folder_of(step), Part(name, step, state))


def commit_all(job: Job, layout: Layout, folder: Path, step: int) -> Checkpoint:
    """The checkpoint of all files that were written; the servers that wrote some have ended."""
    store = CheckpointStore(folder)
    paths = {path.stem.replace("-", " "): path for path in (folder / f"step-{step:06d}").glob("*.safetensors")}
    assert sorted(paths) == sorted(keepers(job))
    files = {name: PartFile(path.name, path.stat().st_size, hash_of(path)) for name, path in paths.items()}
    manifest = Manifest(
        job=job.name,
        settings=job.shared_settings,
        step=step,
        total_steps=step,
        servers=job.servers,
        workers=job.cluster.workers,
        layers=Manifest.layers_of(layout),
        groups=[(0, len(layout.layers) - 1)],
        files=Manifest.entries(files),
    )
    store.commit(manifest)
    return open_checkpoint(store.folder_of(step))


def resume(
    job: Job, layout: Layout, checkpoint: Checkpoint, *, steps: int, gradients: Any, plan: Plan | None = None
) -> list[Values]:
    """Go on from a checkpoint until step `steps`; what each worker reads behind it."""
    resumed = with_checkpoints(job, resume=checkpoint.folder)

    def work(worker: Worker) -> Values:
        worker.exchange.resume(checkpoint, worker.rank)
        known = worker.read()
        for step in range(checkpoint.step + 1, steps + 1):
            worker.backward(step, gradients(worker.rank, step), known=known)
            known = worker.read()
        worker.complete()
        return known

    return run_workers(resumed, layout, work, plan=plan)
