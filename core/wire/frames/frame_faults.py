"""Faults of frames on their way: a sender turns a bit of one, doubles it or breaks it off, if somebody asks so."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

# Of the header where there are no values: it lies there in both forms of a header, and its checksum covers it.
_BYTE_OF_HEADER = 8


class FrameFault(StrEnum):
    """The fault of one frame."""

    CORRUPT = "corrupt"
    DUPLICATE = "duplicate"
    TRUNCATE = "truncate"


class FrameFaults(Protocol):
    """The one that each sender of a process asks before each frame; any thread may call."""

    @property
    def is_due(self) -> bool:
        """Whether the next frame is to have a fault."""
        ...

    def take(self) -> FrameFault | None:
        """The fault of the next frame, which is due no more; None where another sender was faster."""
        ...


class NoFrameFaults:
    """No faults: the default everywhere."""

    is_due = False

    def take(self) -> FrameFault | None:
        """Nothing."""
        return None


def turned(parts: Sequence[bytes | memoryview], values_at: int) -> bytes:
    """A copy of a frame in which one bit is turned: of the values, which begin there, or of the header without any.

    The sender's own values, which may be repeated from where they lie, stay as they are.
    """
    frame = bytearray(b"".join(parts))
    frame[(values_at + len(frame)) // 2 if values_at < len(frame) else _BYTE_OF_HEADER] ^= 1
    return bytes(frame)
