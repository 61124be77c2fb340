"""Files and packages that a job needs on this machine, tried; nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from taihu.core.base.errors import ConfigError
from taihu.core.checkpoint.places import place_of
from taihu.core.job import Job
from taihu.core.job.loggers import check_loggers
from taihu.core.process.results import check_folder_writable
from taihu.doctor.findings import Finding, fails
from taihu.worker.preflight import check_inputs

_LOOK = "look at the settings of this job"


def check_files(job: Job, where: str) -> Iterator[Finding]:
    """Findings about the job's data and model, its folders, and the packages that they need."""
    yield from _tried("data", where, lambda: check_inputs(job))
    for folder in (job.run.dir, job.run.history):
        if folder is not None and folder != Path("none"):
            # What is filled in is a part of one name, or of some.
            known = next(each for each in (folder, *folder.parents) if "{" not in str(each))
            yield from _tried("disk", where, partial(check_folder_writable, known))
    yield from _check_checkpoints(job, where)
    yield from _tried("packages", where, partial(check_loggers, job.run.loggers))


def finding_of(check: str, where: str, error: ConfigError) -> Finding:
    """The finding that an error tells, whose remedy stands behind its last semicolon."""
    text, _, remedy = str(error).rpartition("; ")
    return fails(check, where, text or remedy, remedy if text else _LOOK)


def _check_checkpoints(job: Job, where: str) -> Iterator[Finding]:
    folder = job.checkpoint.dir
    if isinstance(folder, Path):
        if folder != Path("none"):
            yield from _tried("disk", where, lambda: check_folder_writable(folder))
    elif folder is not None:
        yield from _tried("packages", where, lambda: place_of(folder).exists())


def _tried(check: str, where: str, act: Callable[[], object]) -> Iterator[Finding]:
    try:
        act()
    except ConfigError as error:
        yield finding_of(check, where, error)
