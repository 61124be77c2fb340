"""Initial parameters on their way from worker 0 to a server."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError, StaleError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.planner.partition import Shard
from taihu.core.wire.frames.headers import FrameHeader
from taihu.core.wire.frames.kinds import Parameters
from taihu.core.wire.links.shared_memory import allocate_values

__all__ = ["Initialization"]

Values = NDArray[np.float32]


class Initialization:
    """Initial parameters on their way in; `ShardHolder.adopt` makes a shard of them when every frame has come.

    With `shared` they lie in a `buffer` that other processes of this machine can map, if it has the memory.
    """

    def __init__(self, job: str, plan: Plan, partition: Shard, *, shared: bool) -> None:
        self.job = job
        self.plan = plan
        self.partition = partition
        frames = partition.state_frames(plan.frame_elements)
        self.parameters, self.buffer = allocate_values(partition.elements, shared=shared)
        self._expected = len(frames)
        self._missing = {frame.offset: frame for frame in frames}

    def write(self, header: FrameHeader, values: Values) -> None:
        """Take in one frame.

        Raises:
            StaleError: the frame belongs to another job or plan.
            FrameError: it has no parameters, or is not one of the plan's frames that have not come yet.
        """
        header.expect(Parameters)
        sender, (at, _, offset, count) = header.sender, header.address
        if sender.job != self.job or at.plan != self.plan.version:
            raise StaleError(
                f"initial frame of job {sender.job!r}, plan {at.plan}; "
                f"expected job {self.job!r}, plan {self.plan.version}"
            )
        frame = self._missing.get(offset)
        if frame is None or frame.count != count or at.step != 0 or sender.rank != 0:
            raise FrameError(
                f"initial frame of {sender.label} at offset {offset} with {count} values "
                f"at step {at.step}: expected each frame of the plan once, at step 0, of worker 0"
            )
        del self._missing[offset]
        self.parameters[offset : offset + count] = values

    def check_complete(self) -> None:
        """Raise FrameError unless every frame has come."""
        if self._missing:
            raise FrameError(f"initial parameters: {len(self._missing)} of {self._expected} frames did not come")
