"""Points that servers and workers pass: where a fault may be asked for, and who is asked there."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from taihu.core.wire.frames.frame_faults import FrameFaults, NoFrameFaults


class Written(Protocol):
    """A file that is written to."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of `data`; returns its size. OSError where it cannot be written."""
        ...


class Point(StrEnum):
    """The name of a point, one word."""

    START_UP = "start-up"
    JOIN = "join"
    INITIALIZE = "initialize"
    PUSH = "push"
    SUM = "sum"
    UPDATE = "update"
    FETCH = "fetch"
    CHECKPOINT_WRITE = "checkpoint-write"
    CHECKPOINT_RENAME = "checkpoint-rename"
    EVALUATION = "evaluation"
    SAVE = "save"
    FAREWELL = "farewell"


MEANINGS: Final = MappingProxyType(
    {
        Point.START_UP: "the process has its settings, and has done nothing yet",
        Point.JOIN: "the coordinator knows this member of the present generation",
        Point.INITIALIZE: "a worker is about to bring or get parameters, a server has got all of them",
        Point.PUSH: "a worker is about to send a group's gradients, a server has got a frame of them",
        Point.SUM: "a server has all workers' frames, a worker of a ring has completed a sum",
        Point.UPDATE: "a server, or a worker of a ring, is about to change parameters by a sum",
        Point.FETCH: "a server is about to answer with what it updated, a worker has got a group's end",
        Point.CHECKPOINT_WRITE: "a part of a checkpoint is open, and nothing of it is written",
        Point.CHECKPOINT_RENAME: "a part of a checkpoint is on disk under another name",
        Point.EVALUATION: "a worker comes to a test of the model",
        Point.SAVE: "a worker comes to the saving of the model",
        Point.FAREWELL: "a member has done all, and is about to say so",
    }
)
"""The moment of each point."""


class Chaos(Protocol):
    """The one that is asked at each point, by whichever thread passes it."""

    enabled: bool
    """Whether there may be faults: who has frames to pass looks here first."""

    @property
    def frames(self) -> FrameFaults:
        """The faults of frames, for all senders of this process."""
        ...

    def passes(self, point: Point, step: int = 0) -> None:
        """This process passes `point`, in `step` where it belongs to one; a fault that is due there happens now."""

    def disk(self, file: Written) -> Written:
        """`file`, a part of a checkpoint, as the disk is now: it may be full, or slow."""
        ...


class NoChaos:
    """No faults: the default everywhere."""

    enabled = False

    def __init__(self) -> None:
        self.frames: FrameFaults = NoFrameFaults()

    def passes(self, point: Point, step: int = 0) -> None:
        """Do nothing."""

    def disk(self, file: Written) -> Written:
        """Return `file` itself."""
        return file
