"""The pace of signs of life: pure, and the same for all members, who know it from the job alone."""

from __future__ import annotations

from typing import Final

from taihu.core.job.job import Job

MOST_A_SECOND: Final = 50
"""The signs of life of all members together that a coordinator hears in a second."""

# Silence is told from lateness by some signs that are missing.
_OF_SILENCE: Final = 4.0


def seconds_between_signs(job: Job) -> float:
    """The seconds between two signs of life of a member: `cluster.heartbeat_s`, or more where members are many.

    Each costs the coordinator about as much as ten small frames: with twice as many members there would be four times
    as many of them in a step, which takes twice as long.
    """
    cluster = job.cluster
    members = job.servers + job.world.workers
    return max(cluster.heartbeat_s, min(members / MOST_A_SECOND, cluster.lost_after_s / _OF_SILENCE))
