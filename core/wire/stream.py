"""Frames in the stream of a gRPC call: how one side writes them, and reads those of the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, MemberLostError, TaihuError
from taihu.core.wire.codec import encode_frame, read_frame
from taihu.core.wire.frame_faults import FrameFault, FrameFaults, NoFrameFaults, turned
from taihu.core.wire.headers import Frame, FrameHeader
from taihu.core.wire.kinds import Again, Farewell, Mark, Parameters, Question, Repetition, Taken, Word
from taihu.core.wire.repetition import ArrivingFrames, OutgoingFrame, SentFrames, WhenTaken, control_header
from taihu.core.wire.sink import Origin

__all__ = ["StreamReader", "StreamSender", "message_of"]


Item = OutgoingFrame | WhenTaken | Callable[[], None] | TaihuError | None


class StreamSender:
    """Encodes frames, in the order of `send`, when the stream asks `messages` for them; see also `DirectSender`.

    Messages call the other side `peer`; `faults` is asked before each frame.
    """

    def __init__(self, peer: str, *, faults: FrameFaults | None = None) -> None:
        self.sent_bytes = 0
        """Bytes of all frames so far, headers included."""
        self._peer = peer
        self._faults = faults or NoFrameFaults()
        self._sent = SentFrames(peer)
        self._stopped = self._unread = False
        self._queue: SimpleQueue[Item] = SimpleQueue()
        # What is said about frames, before all others.
        self._urgent: deque[Callable[[], Iterator[bytes]]] = deque()

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        """Queue a frame; its pieces, contiguous arrays, are read when its turn comes, urgent or not."""
        self._queue.put(OutgoingFrame(header, pieces))

    def put(self, frame: OutgoingFrame) -> None:
        """Queue a frame that others get, too."""
        self._queue.put(frame)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, from the stream's thread, when all frames queued so far have been taken by the stream.

        Once the other side has ended the stream, this thread or that of `give_up` calls it.
        """
        self._queue.put(callback)
        if self._unread:
            self._empty()

    def after_taken(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, by any thread, when the other side has taken all frames queued so far.

        Their arrays may be written to then; see also `after`.
        """
        self._queue.put(WhenTaken(callback))
        if self._unread:
            self._empty()

    def say(self, word: Word) -> None:
        """Say something about frames that come, before what is queued; see `taihu.core.wire.repetition`."""
        self._put_first(partial(_words, word))

    def repeat(self, number: int) -> None:
        """Send frame `number` once more, and those behind it; the stream ends with an error where that cannot be."""
        self._put_first(partial(self._repeated, number))

    def taken(self, number: int) -> None:
        """The first `number` frames have been taken by the other side."""
        self._sent.taken(number)

    def give_up(self) -> None:
        """The other side has ended the stream: nothing that is queued is read any more, and nobody waits for it.

        gRPC asks for nothing more then, not even for what is queued behind the last frame that it sent.
        """
        self._unread = True
        self._empty()
        self._sent.give_up()

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
            while self._urgent and not self._stopped:
                yield from self._urgent.popleft()()
            if isinstance(item, TaihuError):
                raise item
            if isinstance(item, OutgoingFrame):
                message = message_of(item)
                self._sent.add(item, len(message))
                self.sent_bytes += len(message)
                if self._faults.is_due and _comes_once(item.header):
                    yield from self._with_fault(item, message)
                else:
                    yield message
            elif isinstance(item, WhenTaken):
                word = self._sent.mark(item.callback)
                yield from _words(word)
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

    def _put_first(self, words: Callable[[], Iterator[bytes]]) -> None:
        self._urgent.append(words)
        self._queue.put(_look_again)

    def _repeated(self, number: int) -> Iterator[bytes]:
        frames = self._sent.since(number)
        yield from _words(Repetition(number))
        for frame in frames:
            yield encode_frame(frame.header, frame.pieces, frame.checksum)
        yield from _words(self._sent.marked)

    def _empty(self) -> None:
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is None:
                    # `messages` may wait for it.
                    self._queue.put(None)
                    return
                if isinstance(item, WhenTaken):
                    item.callback()
                elif callable(item):
                    item()


class StreamReader:
    """Reads the messages of one direction of a stream; words about frames are not for others.

    Args:
        origin: of the messages.
        back: sends in the other direction.
        on_late: see `ArrivingFrames`.
    """

    def __init__(self, origin: Origin, back: StreamSender, on_late: Callable[[TaihuError], None]) -> None:
        self._arriving = ArrivingFrames(origin, back, on_late)
        self._last: FrameHeader | None = None

    def read(self, message: bytes) -> Frame | None:
        """The frame of the next message, if it is to be taken.

        Raises:
            DamagedFrameError: it came damaged twice.
            FrameError: see `read_frame`.
        """
        try:
            frame = read_frame(message)
        except DamagedFrameError as error:
            self._arriving.refuse(error)
            return None
        kind = frame.header.kind
        if isinstance(kind, (Again, Repetition, Mark, Taken)):
            self._arriving.hear(kind)
            return None
        if not self._arriving.admits():
            return None
        if frame.header == self._last and _comes_once(frame.header):
            self._arriving.came_twice()
            return None
        self._last = frame.header
        self._arriving.took()
        return frame

    def end(self) -> None:
        """The other side has ended its direction; raises DamagedFrameError where something is to be repeated."""
        self._arriving.end()

    def close(self) -> None:
        """Wait for no repetition any more."""
        self._arriving.close()


def message_of(frame: OutgoingFrame) -> bytes:
    """The frame encoded, once for all who it goes to."""
    if frame.message is None:
        frame.message = encode_frame(frame.header, frame.pieces, frame.checksum)
    return frame.message


def _comes_once(header: FrameHeader) -> bool:
    """Whether no two frames of a stream have this header; who reads parameters may ask for the same ones again."""
    return not isinstance(header.kind, (Question, Parameters, Farewell))


def _words(word: Word | None) -> Iterator[bytes]:
    if word is not None:
        yield encode_frame(control_header(word), ())


def _look_again() -> None:
    """Wakes a sender: something is to be said."""
