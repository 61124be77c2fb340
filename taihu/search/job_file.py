"""The job file of a way to run a job. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from taihu.core.base.words import counted, one_line
from taihu.core.job import Job, load_job
from taihu.core.job.advice import without_effect
from taihu.core.job.toml import job_to_toml
from taihu.search.ways import Candidate, Way


def job_file(candidate: Candidate, notes: Iterable[str]) -> str:
    """A file that is read back as the candidate's job, without settings to no effect; `notes` stand above it."""
    lines = [*notes, f"It takes {counted(candidate.hosts, 'host')}: {where(candidate.way)}."]
    comments = [f"# {one_line(line)}".encode("ascii", "replace").decode() for line in lines]
    return "\n".join(comments) + "\n\n" + job_to_toml(_effective(candidate.job), given=True)


def where(way: Way) -> str:
    """The place of servers, in words."""
    if not way.servers:
        return "one for each worker"
    if way.beside:
        return "one for each worker, server i beside worker i"
    return "one for each worker and for each server"


def _effective(job: Job) -> Job:
    tables: dict[str, dict[str, Any]] = job.model_dump(exclude={"name"}, exclude_unset=True)
    for key, _ in without_effect(job):
        section, _, name = key.partition(".")
        tables[section].pop(name, None)
    return load_job(None, tables, {"": {"name": job.name}})
