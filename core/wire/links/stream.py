"""Frames in the stream of a gRPC call: how one side writes them, and reads those of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, MemberLostError, TaihuError
from taihu.core.system.queues import Empty, SimpleQueue
from taihu.core.wire.frames.codec import read_frame
from taihu.core.wire.frames.frame_faults import FrameFault, FrameFaults, NoFrameFaults, turned
from taihu.core.wire.frames.headers import Frame, FrameHeader
from taihu.core.wire.frames.kinds import Farewell, Parameters, Question
from taihu.core.wire.links.sink import Origin
from taihu.core.wire.links.under_way import ArrivingFrames, OutgoingFrame

__all__ = ["StreamReader", "StreamSender"]


Item = OutgoingFrame | Callable[[], None] | TaihuError | None


class StreamSender:
    """Encodes frames, in the order of `send`, when the stream asks `messages` for them; see also `DirectSender`.

    Messages call the other side `peer`; `faults` is asked before each frame.
    """

    def __init__(self, peer: str, *, faults: FrameFaults | None = None) -> None:
        self.sent_bytes = 0
        """Bytes of all frames so far, headers included."""
        self._peer = peer
        self._faults = faults or NoFrameFaults()
        self._stopped = self._unread = False
        self._queue: SimpleQueue[Item] = SimpleQueue()

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        """Queue a frame; its pieces, contiguous arrays, are read when its turn comes, urgent or not."""
        self._queue.put(OutgoingFrame(header, pieces))

    def put(self, frame: OutgoingFrame) -> None:
        """Queue a frame that others get, too."""
        self._queue.put(frame)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, from the stream's thread, when all frames queued so far have been taken by the stream.

        Their arrays may be written to then. Once the other side has ended the stream, this thread or that of
        `give_up` calls it.
        """
        self._queue.put(callback)
        if self._unread:
            self._empty()

    def give_up(self) -> None:
        """The other side has ended the stream: nothing that is queued is read any more, and nobody waits for it.

        gRPC asks for nothing more then, not even for what is queued behind the last frame that it sent.
        """
        self._unread = True
        self._empty()

    def end(self, error: TaihuError | None = None) -> None:
        """End the stream after what is queued, with `error` or well."""
        self._queue.put(error)

    def stop(self) -> None:
        """End the stream before what is queued; returns at once."""
        self._stopped = True
        self._queue.put(None)

    def messages(self) -> Iterator[bytes]:
        """The encoded frames until the end; raises the error that it ends with."""
        while (item := self._queue.get()) is not None and not self._stopped:
            if isinstance(item, TaihuError):
                raise item
            if isinstance(item, OutgoingFrame):
                message = item.message
                self.sent_bytes += len(message)
                if self._faults.is_due and _comes_once(item.header):
                    yield from self._with_fault(item, message)
                else:
                    yield message
            else:
                item()

    def _with_fault(self, frame: OutgoingFrame, message: bytes) -> Iterator[bytes]:
        """The message of a frame with the fault that is due.

        Raises:
            MemberLostError: it is broken off. gRPC hands no part of a message on: the other side sees the end.
        """
        fault = self._faults.take()
        if fault is FrameFault.TRUNCATE:
            raise MemberLostError(f"{self._peer} was lost: its connection broke")
        if fault is FrameFault.CORRUPT:
            message = turned([message], len(message) - sum(piece.nbytes for piece in frame.pieces))
        yield message
        if fault is FrameFault.DUPLICATE:
            yield message

    def _empty(self) -> None:
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is None:
                    # `messages` may wait for it.
                    self._queue.put(None)
                    return
                if callable(item):
                    item()


class StreamReader:
    """Reads the messages of one direction of a stream, which `origin` sends."""

    def __init__(self, origin: Origin) -> None:
        self._arriving = ArrivingFrames(origin)
        self._last: FrameHeader | None = None

    def read(self, message: bytes) -> Frame | None:
        """The frame of the next message; None of one that comes twice.

        Raises:
            DamagedFrameError: it is not as it was sent; the message names the link.
            FrameError: see `read_frame`.
        """
        try:
            frame = read_frame(message)
        except DamagedFrameError as error:
            raise self._arriving.damaged(error) from None
        if frame.header == self._last and _comes_once(frame.header):
            self._arriving.came_twice()
            return None
        self._last = frame.header
        self._arriving.took()
        return frame


def _comes_once(header: FrameHeader) -> bool:
    """Whether no two frames of a stream have this header; who reads parameters may ask for the same ones again."""
    return not isinstance(header.kind, (Question, Parameters, Farewell))
