"""Frames that go out by a pipe: their order, who waits until they have gone, and faults that somebody asks for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import MemberLostError, TaihuError
from taihu.core.system.queues import Empty, SimpleQueue
from taihu.core.wire.frames.format import HEADER_BYTES, checksum_of_all, pack_header
from taihu.core.wire.frames.frame_faults import FrameFault, FrameFaults, NoFrameFaults, turned
from taihu.core.wire.frames.headers import Address, At, FrameHeader, payload_of
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Farewell

Buffers = Sequence[bytes | memoryview]


class OutgoingFrame:
    """A frame; the first pipe that sends it computes its checksum, or copies it into a message, for all.

    Attributes:
        header, pieces: as `format.message_of` takes them.
    """

    __slots__ = ("_checksum", "_message", "_number", "header", "pieces")

    def __init__(self, header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> None:
        self.header = header
        self.pieces = pieces
        self._message: bytes | None = None
        self._number = 0
        self._checksum: int | None = None

    def buffers(self, number: int) -> list[bytes | memoryview]:
        """The bytes of the frame, which is this one of its pipe, where they lie."""
        payload: list[bytes | memoryview] = [*payload_of(self.pieces)]
        if self._checksum is None:
            self._checksum = checksum_of_all(payload)
        return [pack_header(self.header, sum(map(len, payload)), self._checksum, number), *payload]

    def message(self, number: int) -> bytes:
        """The same in one piece. Pipes that have sent as many frames share it."""
        if self._message is None or self._number != number:
            self._message, self._number = b"".join(self.buffers(number)), number
        return self._message


def last_word(sender: Sender, at: At, failure: str = "") -> OutgoingFrame:
    """The frame by which `sender` leaves in good order, or says why it gives up."""
    text = failure.encode()
    encoding = Encoding.TEXT if text else Encoding.NONE
    header = FrameHeader(sender, Address(at, 0, 0, 0), Farewell(), encoding, selected=len(text))
    return OutgoingFrame(header, [np.frombuffer(text, dtype=np.uint8)] if text else ())


Item = OutgoingFrame | Callable[[], None] | TaihuError | None


class Outbox:
    """Frames to `peer` in the order in which they go; any thread puts them in, and the pipe's takes them out.

    `faults` is asked before each frame.
    """

    def __init__(self, peer: str, *, faults: FrameFaults | None = None) -> None:
        self.sent_bytes = 0
        """Bytes of all frames so far, headers included."""
        self._peer = peer
        self._faults = faults or NoFrameFaults()
        self._number = 0
        self._stopped = self._is_over = self._is_given_up = False
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._urgent: deque[Item] = deque()
        # The one that frames took before, until it has read all of them.
        self._former: Outbox | None = None

    def follow(self, former: Outbox) -> None:
        """Go on behind `former`: what `after` is given is called behind frames that went by that, too."""
        self._former = former
        former._behind(partial(self._forget, former))

    def _forget(self, former: Outbox) -> None:
        if self._former is former:
            self._former = None

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        """Put in a frame, before all that are not urgent if it is; its contiguous arrays are read in its turn."""
        self.put(OutgoingFrame(header, pieces), urgent=urgent)

    def put(self, item: OutgoingFrame | Callable[[], None], *, urgent: bool = False) -> None:
        """Put in a frame that other pipes get, too, or a callback for the sending thread."""
        if urgent:
            self._urgent.append(item)
            self._queue.put(_look_again)
        else:
            self._queue.put(item)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, from the sending thread, when all frames put in so far, as urgent, have been read.

        Their arrays may be written to then. Once the other side wants nothing more, this thread or that of `give_up`
        calls it.
        """
        former = self._former
        if former is None:
            self._behind(callback, urgent=urgent)
        else:
            former._behind(partial(self._behind, callback, urgent=urgent), urgent=urgent)

    def _behind(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        self.put(callback, urgent=urgent)
        self._tell_if_over()

    def end(self, error: TaihuError | None = None) -> None:
        """End behind what has been put in, with `error` or well."""
        self._queue.put(error)

    def stop(self) -> None:
        """End before what has been put in; returns at once."""
        self._stopped = True
        self._queue.put(None)

    def give_up(self, *, is_over: bool = False) -> None:
        """The other side has left, and wants nothing more: who waits until something has been read is told.

        That is so once nothing goes out any more, which nobody sees of a stream of gRPC: it `is_over` at once.
        """
        self._is_given_up = True
        self._is_over = self._is_over or is_over
        self._tell_if_over()

    def messages(self, lost: Callable[[TaihuError], None] | None = None) -> Iterator[bytes]:
        """The frames until the end, each in one piece; `lost` is told of an error in place of a raise.

        Raises:
            TaihuError: what it ends with.
            MemberLostError: a fault breaks off a frame. No part of a message comes: the other side sees the end.
        """
        try:
            while (item := self._next()) is not None:
                message = item.message(self._number)
                self._number += 1
                self.sent_bytes += len(message)
                if not self._faults.is_due:
                    yield message
                else:
                    yield from map(b"".join, self._with_fault([message], is_whole=True))
        except TaihuError as error:
            if lost is None:
                raise
            lost(error)

    def frames(self, most_pieces: int) -> Iterator[Buffers]:
        """As `messages`, but each frame as the buffers in which it lies, of which there are so many at most.

        A frame that is broken off comes by half before the error.
        """
        while (item := self._next()) is not None:
            buffers: Buffers = item.buffers(self._number)
            if len(buffers) > most_pieces:
                buffers = [buffers[0], b"".join(buffers[1:])]
            self._number += 1
            self.sent_bytes += sum(map(len, buffers))
            if not self._faults.is_due:
                yield buffers
            else:
                yield from self._with_fault(buffers, is_whole=False)

    def over(self) -> None:
        """Nothing goes out any more."""
        self._is_over = True
        self._tell_if_over()

    def _next(self) -> OutgoingFrame | None:
        """The next frame, behind callbacks that come before it; None at the end. Raises the error of `end`."""
        while not self._stopped:
            item = self._urgent.popleft() if self._urgent else self._queue.get()
            if isinstance(item, OutgoingFrame):
                if not self._stopped:
                    return item
            elif callable(item):
                item()
            elif item is None:
                break
            else:
                raise item
        return None

    def _with_fault(self, buffers: Buffers, *, is_whole: bool) -> Iterator[Buffers]:
        """A frame with the fault that is due; of one that is broken off its half comes, unless it travels whole."""
        fault = self._faults.take()
        whole = b"".join(buffers)
        if fault is FrameFault.CORRUPT:
            whole = turned([whole], HEADER_BYTES)
        if fault is not FrameFault.TRUNCATE:
            yield [whole]
            if fault is FrameFault.DUPLICATE:
                yield [whole]
            return
        if not is_whole:
            yield [whole[: len(whole) // 2]]
        raise MemberLostError(f"{self._peer} was lost: its connection broke")

    def _tell_if_over(self) -> None:
        """Nothing goes out any more, and the other side wants nothing: tell who waits behind what is in here."""
        if not (self._is_over and self._is_given_up):
            return
        waiting = [*_drained(self._urgent.popleft, IndexError), *_drained(self._queue.get_nowait, Empty)]
        for item in waiting:
            if callable(item):
                item()
        if None in waiting:
            # A stream's thread may wait for it.
            self._queue.put(None)


def _drained(take: Callable[[], Item], error: type[Exception]) -> Iterator[Item]:
    while True:
        try:
            yield take()
        except error:
            return


def _look_again() -> None:
    """Wakes a sending thread: something urgent has come."""
