"""A job as a generation of its members has it, in which more or fewer servers may take part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taihu.core.job.job import Job

_SERVERS: Final = "cluster.servers"


def with_servers(job: Job, servers: int) -> Job:
    """`job` with so many servers; 0 for as many as it has."""
    if servers in (0, job.servers):
        return job
    return job.model_copy(update={"cluster": job.cluster.model_copy(update={"servers": servers})})


def tied_to_servers(job: Job) -> str:
    """The setting by which the bits of a run depend on the number of its servers; "" where they do not."""
    if job.downlink == "doublesqueeze":
        return "compression.downlink doublesqueeze: each server selects of what it has"
    if job.compression.rounds_sums:
        kind = job.compression.downlink_value_type
        return f"compression.downlink_value_type {kind}: values of one layer on one server share a step"
    return ""


def are_of_one_run(some: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether settings, as `Job.shared_settings` has them, are those of one run: its servers come and go."""
    return _without_servers(some) == _without_servers(others)


def _without_servers(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if key != _SERVERS}
