"""Frames under way in one direction of a link: as they go out, and as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import structlog
from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, FrameError
from taihu.core.wire.frames.checksum import checksum_of_all
from taihu.core.wire.frames.codec import encode_frame
from taihu.core.wire.frames.headers import FrameHeader, payload_of
from taihu.core.wire.links.sink import Origin

__all__ = ["ArrivingFrames", "OutgoingFrame"]

# As many as the part of a number can tell apart that is written.
_NUMBERS: Final = 256


class OutgoingFrame:
    """A frame; the first thread that sends it computes its checksum, or encodes it, for all.

    Attributes:
        header, pieces: as `encode_frame` takes them.
    """

    __slots__ = ("_checksum", "_message", "header", "pieces")

    def __init__(self, header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> None:
        self.header = header
        self.pieces = pieces
        self._message: bytes | None = None
        self._checksum: int | None = None

    @property
    def checksum(self) -> int:
        """The checksum of the pieces."""
        if self._checksum is None:
            self._checksum = checksum_of_all(payload_of(self.pieces))
        return self._checksum

    @property
    def message(self) -> bytes:
        """The frame encoded."""
        if self._message is None:
            self._message = encode_frame(self.header, self.pieces, self.checksum)
        return self._message


class ArrivingFrames:
    """Counts the frames that `origin` sends, from 0 on; one thread calls."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._next = 0

    def admits(self, number: int) -> bool:
        """Whether the frame with these last eight bits of its number is the next one; the last one is dropped.

        Raises:
            FrameError: it is neither.
        """
        behind = (self._next - number) % _NUMBERS
        if behind == 0:
            return True
        if behind != 1 or not self._next:
            raise FrameError(
                f"{self._origin.link}: another frame than number {self._next} came, {behind} before it: expected all "
                "of them in their order"
            )
        self.came_twice()
        return False

    def took(self) -> None:
        """The next frame has come whole."""
        self._next += 1

    def came_twice(self) -> None:
        """The last frame has come once more, and is dropped."""
        structlog.get_logger().warning("a frame came twice", link=self._origin.link, frame=self._next - 1)

    def damaged(self, error: DamagedFrameError) -> DamagedFrameError:
        """The error that ends the link: the next frame has come otherwise than it was sent."""
        return self._origin.damaged(f"frame {self._next} came damaged: {error}")
