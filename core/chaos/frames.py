"""Frames that this process sends while a fault of one is due."""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import Final

from taihu.core.chaos.faults import Fault, FaultKind
from taihu.core.wire.frames.frame_faults import FrameFault

_OF_FRAMES: Final = MappingProxyType(
    {
        FaultKind.CORRUPT: FrameFault.CORRUPT,
        FaultKind.DUPLICATE: FrameFault.DUPLICATE,
        FaultKind.TRUNCATE: FrameFault.TRUNCATE,
    }
)


class FaultyFrames:
    """The faults of the next frames, each of one, in their order. See `FrameFaults`; any thread may call."""

    def __init__(self) -> None:
        self._due: deque[FrameFault] = deque()

    @property
    def is_due(self) -> bool:
        """Whether the next frame is to have a fault."""
        return bool(self._due)

    def takes(self, fault: Fault) -> bool:
        """Whether `fault` is one of frames; it is due then."""
        if fault.kind not in _OF_FRAMES:
            return False
        self._due.append(_OF_FRAMES[fault.kind])
        return True

    def take(self) -> FrameFault | None:
        """The fault of the next frame, which is due no more; None where another sender was faster."""
        try:
            return self._due.popleft()
        except IndexError:
            return None
