"""Frames on their way into a gRPC stream, which pulls its messages from an iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from numpy.typing import NDArray

from taihu.wire.codec import encode_frame
from taihu.wire.headers import FrameHeader

__all__ = ["StreamSender"]

Item = tuple[FrameHeader, Sequence[NDArray[Any]]] | Callable[[], None] | None


class StreamSender:
    """Encodes frames, in the order of `send`, when the stream asks `messages` for them; see also `DirectSender`."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        """Bytes of all frames so far, headers included."""
        self._stopped = False
        self._queue: SimpleQueue[Item] = SimpleQueue()

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        """Queue a frame; its pieces, contiguous arrays, are read when its turn comes, urgent or not."""
        self._queue.put((header, pieces))

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, from the stream's thread, when all frames queued so far have been taken by the stream."""
        self._queue.put(callback)

    def end(self) -> None:
        """End the stream after what is queued."""
        self._queue.put(None)

    def stop(self) -> None:
        """End the stream before what is queued; returns at once."""
        self._stopped = True
        self._queue.put(None)

    def messages(self) -> Iterator[bytes]:
        """The encoded frames until the end."""
        while (item := self._queue.get()) is not None and not self._stopped:
            if callable(item):
                item()
                continue
            message = encode_frame(*item)
            self.sent_bytes += len(message)
            yield message
