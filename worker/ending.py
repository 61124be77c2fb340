"""The model at the end of a run, saved by worker 0 while the others read along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from taihu.job import Job
from taihu.run_folder import RunFiles, stopped_model
from worker.data.dataset import Dataset
from worker.engine import Array, Model
from worker.saved.writing import describe_model, save_model
from worker.training.replica import Replica
from worker.training.stopping import write_or_say

__all__ = ["Ending", "save_at_end"]


class Ending(NamedTuple):
    """The place of the saved model on worker 0, if there is one, and why a stopped run could not save it."""

    path: Path | None = None
    problem: str = ""


def save_at_end(
    job: Job,
    dataset: Dataset,
    files: RunFiles,
    replica: Replica,
    read_layer: Callable[[int], None],
    *,
    rank: int,
    steps: int,
    stopped: bool,
) -> Ending:
    """Save the model after `steps`, if anybody wants it; all workers call this at the same time.

    `read_layer(i)` is called before the parameters of layer i are read. A run that was `stopped` saves its model in
    any case, where it can.

    Raises:
        ModelError: the model of a run that was not stopped cannot be saved.
    """
    if stopped:
        replica.uses = replace(replica.uses, saves=True)
    if not replica.uses.saves:
        return Ending()
    path = stopped_model(job, files, steps) if stopped else files.model
    problems: list[str] = []

    def write(whole: Model, pieces: Iterator[Array]) -> None:
        write_file = partial(_write, job, dataset, path, whole, pieces, steps)
        if stopped:
            problems.append(write_or_say(write_file, pieces))
        else:
            write_file()

    replica.save(write, read_layer)
    problem = "run.save is none" if stopped and path is None else "".join(problems)
    if problem and rank == 0:
        structlog.get_logger().bind(role="worker", rank=rank).error("the model was not saved", reason=problem)
    return Ending(path if rank == 0 and not problem else None, problem)


def _write(  # noqa: PLR0917 - bound one after the other
    job: Job, dataset: Dataset, path: Path | None, whole: Model, pieces: Iterator[Array], steps: int
) -> None:
    if path is not None:
        save_model(path, whole, describe_model(job, dataset, whole, steps), pieces)
