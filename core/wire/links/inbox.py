"""Frames that come by a pipe: who sends them, who takes them, and that each comes once and whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import structlog
from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, FrameError
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.format import HEADER_BYTES, Opening, open_header, read_message, same_content
from taihu.core.wire.frames.headers import Frame, FrameHeader, frame_of, payload_of
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Farewell, Kind
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES

Values = NDArray[Any]
# As many as the part of a number can tell apart that is written.
_NUMBERS: Final = 256


def damaged_error(link: str, seen: str) -> DamagedFrameError:
    """The error of a frame that has come otherwise than it was sent."""
    return DamagedFrameError(f"{link}: {seen}; check network cards, switches and memory between them")


@dataclass(frozen=True)
class Origin:
    """The sender of the frames of a pipe; its name in messages, and that of this process, which gets them.

    `patience` is how long it is waited for.
    """

    name: str
    sender: Sender
    receiver: str = "this process"
    patience: Patience = field(default_factory=Patience)

    @property
    def link(self) -> str:
        """Both ends, for messages."""
        return f"the link from {self.name} to {self.receiver}"

    def damaged(self, seen: str) -> DamagedFrameError:
        """The error of a frame that has come otherwise than it was sent."""
        return damaged_error(self.link, seen)


@dataclass(frozen=True)
class Sink:
    """The receiver of frames of these `kinds`; all are called by the thread that receives.

    `places(header)` gives contiguous arrays of as many values together as the address has in which dense values are
    received without a copy, or None where there are no such; `take(header, values, in_place)` is called when they are
    complete, with those arrays, or without a place with one that may be used again after. `take_frame(frame)` gets
    sparse frames and ones without values, and may keep them; but `leave(text)`, where there is one, the words of a
    farewell.
    """

    kinds: tuple[type[Kind], ...]
    places: Callable[[FrameHeader], Sequence[Values] | None]
    take: Callable[[FrameHeader, Sequence[Values], bool], None]
    take_frame: Callable[[Frame], None]
    leave: Callable[[str], None] | None = None


class Inbox:
    """The frames that `origin` sends by one pipe, counted from 0 on, and handed to `sink`; one thread calls."""

    def __init__(self, origin: Origin, sink: Sink) -> None:
        self.received_bytes = 0
        """Bytes of all frames so far, headers included."""
        self.origin = origin
        self._sink = sink
        self._next = 0
        self._room: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    def take_message(self, message: bytes) -> None:
        """Take a frame that came in one piece.

        Raises:
            DamagedFrameError: it is not as it was sent; the message names the link.
            FrameError: it makes no sense, or is not expected here.
        """
        origin = self.origin
        try:
            frame, opening = read_message(message, origin.sender, origin.name)
        except DamagedFrameError as error:
            raise self._damaged(error) from None
        if not self._admits(opening):
            return
        self._came(len(message))
        if frame.header.is_dense:
            self._sink.take(frame.header, [frame.values], False)
        elif self._sink.leave is not None and isinstance(frame.header.kind, Farewell):
            self._sink.leave(frame.text)
        else:
            self._sink.take_frame(frame)

    def take_from(self, receive: Callable[[Sequence[memoryview]], bool], header: memoryview) -> bool:
        """Take the next frame of a connection; False when that has ended.

        `receive` fills memory, and says whether there was anything; `header` is room for a header. Raises as
        `take_message`, and what `receive` raises.
        """
        if not receive([header]):
            return False
        origin = self.origin
        try:
            opening = open_header(header, origin.sender, origin.name)
            if self._admits(opening):
                self._take_payload(opening, receive)
            else:
                receive([self.room(opening.payload_bytes).data])
        except DamagedFrameError as error:
            raise self._damaged(error) from None
        return True

    def room(self, size: int) -> NDArray[np.uint8]:
        """Memory of `size` bytes that is used again for each frame without a place."""
        if len(self._room) < size:
            self._room = np.empty(MAX_PAYLOAD_BYTES, dtype=np.uint8)
        return self._room[:size]

    def _take_payload(self, opening: Opening, receive: Callable[[Sequence[memoryview]], bool]) -> None:
        header, size = opening.header, opening.payload_bytes
        places: Sequence[Values] | None = None
        if not header.is_dense:
            values: Sequence[Values] = [np.empty(size, dtype=np.uint8)]
        else:
            places = self._sink.places(header)
            values = places if places is not None else [self.room(size).view(header.value_type.dtype)]
        payload = payload_of(values)
        if not receive(payload) and size:
            raise ConnectionResetError("the connection ended within a frame")
        same_content(opening, payload)
        self._came(HEADER_BYTES + size)
        if header.is_dense:
            self._sink.take(header, values, places is not None)
        else:
            self._sink.take_frame(frame_of(header, values[0]))

    def _admits(self, opening: Opening) -> bool:
        """Whether a frame is the next one, of a kind that is expected; the last one once more is dropped.

        Raises:
            FrameError: it is neither.
        """
        behind = (self._next - opening.number) % _NUMBERS
        if behind == 1 and self._next:
            structlog.get_logger().warning("a frame came twice", link=self.origin.link, frame=self._next - 1)
            return False
        if behind:
            raise FrameError(
                f"{self.origin.link}: another frame than number {self._next} came, {behind} before it: expected all "
                "of them in their order"
            )
        if not isinstance(opening.header.kind, self._sink.kinds):
            raise opening.header.unexpected(*self._sink.kinds)
        return True

    def _came(self, size: int) -> None:
        self._next += 1
        self.received_bytes += size

    def _damaged(self, error: DamagedFrameError) -> DamagedFrameError:
        """The error that ends the pipe: the next frame has come otherwise than it was sent."""
        return self.origin.damaged(f"frame {self._next} came damaged: {error}")
