"""`[checkpoint]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from taihu.core.settings.base import Count, PathOrUrl, Seconds, Section

AUTO: Final = Path("auto")
"""The newest checkpoint, if there is one, in the place of a checkpoint's folder."""


class CheckpointSettings(Section):
    """`[checkpoint]`: what a run needs to go on, kept between two steps while it goes on.

    `dir` is the folder of the checkpoints, which all processes write to: of one machine, or shared by all; `none` for
    no checkpoints. It may be a URL of a store that fsspec knows, such as `s3://bucket/folder` (extra `remote`).
    `taihu train` puts them into the run's folder. One is begun `every_seconds`, or `every_steps` if that is given,
    and after the last step, also of a run that is stopped. It counts when all of it is durable; the newest `keep`
    stay. `resume` is one of them, a folder such as `step-000120`, to go on from: servers and workers may be more or
    fewer than those that wrote it; `auto` is the newest in `dir`, or the beginning where none is there, so that the
    same command begins a run and goes on with it. Where a process is lost, all begin again from the newest one in
    `dir` as soon as another process has taken its place, at most `restarts` times within an hour. Processes that are
    started when `dir` holds a checkpoint with steps left go on from there. With `in_memory` members hold their last
    steps in memory of their hosts that outlives a process, so that none is made again.
    """

    dir: PathOrUrl | None = Field(default=None, description="the folder that all processes write to, or none")
    every_seconds: Seconds = Field(default=60.0, description="seconds from one checkpoint to the next one")
    every_steps: Count | None = Field(default=None, description="steps from one to the next, in place of seconds")
    keep: Count = Field(default=2, description="how many of the newest stay")
    restarts: Annotated[int, Field(ge=0, le=10**6)] = Field(
        default=3, description="how often within an hour a run goes on by itself after a process was lost"
    )
    in_memory: bool = Field(
        default=True, description="whether the last steps are held in memory that outlives a process"
    )
    resume: PathOrUrl | None = Field(default=None, description="the folder of a checkpoint to go on from, or auto")

    @property
    def resumes_auto(self) -> bool:
        """Whether a run goes on from its newest checkpoint, if there is one."""
        return self.resume == AUTO
