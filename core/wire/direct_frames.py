"""Frames on a connection of their own (`taihu.core.wire.direct_connection`), straight from one arena into another.

A frame is a header of fixed size (`taihu.core.wire.direct_header`), and its payload. The sender is the same for all
frames of a connection.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, FrameError, MemberLostError, RunError, TaihuError
from taihu.core.wire.checksum import checksum_of_all
from taihu.core.wire.direct_connection import MOST_PIECES, receive_into
from taihu.core.wire.direct_header import HEADER_BYTES, check_header, number_in, pack_header, unpack_header
from taihu.core.wire.frame_faults import FrameFault, FrameFaults, NoFrameFaults, turned
from taihu.core.wire.headers import FrameHeader, frame_of
from taihu.core.wire.kinds import Again, Mark, Repetition, Taken, Word
from taihu.core.wire.limits import MAX_PAYLOAD_BYTES
from taihu.core.wire.repetition import (
    ArrivingFrames,
    Back,
    OutgoingFrame,
    SentFrames,
    WhenTaken,
    control_header,
    payload_of,
)
from taihu.core.wire.sink import Origin, Sink

__all__ = ["HEADER_BYTES", "DirectReceiver", "DirectSender"]

Values = NDArray[Any]
Item = OutgoingFrame | WhenTaken | Callable[[], None] | None


class DirectReceiver:
    """Reads frames from a connection in a thread of its own, until the other side ends it.

    `on_lost(error)` is called when the connection breaks, brings what it must not, or the sink fails; `on_ended` when
    it has ended between two frames. Frames that come damaged are asked for again by `back`.
    """

    def __init__(
        self,
        connection: socket.socket,
        origin: Origin,
        sink: Sink,
        on_lost: Callable[[TaihuError], None],
        on_ended: Callable[[], None] = lambda: None,
        *,
        back: Back | None = None,
    ) -> None:
        self.received_bytes = 0
        self._connection = connection
        self._origin = origin
        self._sink = sink
        self._on_lost = on_lost
        self._on_ended = on_ended
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._scratch = np.empty(0, dtype=np.uint8)
        self._arriving = ArrivingFrames(origin, back, self._late)
        # A frame that came damaged in its places, which stay lent until it has been repeated.
        self._lent: tuple[FrameHeader, Sequence[Values]] | None = None
        self._thread = threading.Thread(target=self._run, name="direct-receive", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Return when everything that was sent has been taken."""
        self._thread.join()

    def close(self) -> None:
        """Cut the connection, if the other side has not ended it."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_frame():
                pass
            self._arriving.end()
            self._on_ended()
        except TaihuError as error:
            self._on_lost(error)
            self._discard()
        except OSError:
            self._on_lost(MemberLostError(f"{self._origin.name} was lost: its connection broke"))
        except BaseException as error:
            self._on_lost(RunError(f"internal error while taking in a frame of {self._origin.name}: {error!r}"))
            raise
        finally:
            self._arriving.close()
            self._connection.close()

    def _late(self, error: TaihuError) -> None:
        """No repetition has come: end it, from another thread."""
        self._on_lost(error)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _discard(self) -> None:
        """Read on to the end: the other side shall hear the reason over gRPC, not of a connection that breaks."""
        with suppress(OSError):
            while self._connection.recv_into(self._room(MAX_PAYLOAD_BYTES).data):
                pass

    def _take_frame(self) -> bool:
        """Read one frame; False when the connection has ended."""
        if not receive_into(self._connection, [self._header]):
            return False
        try:
            check_header(self._header)
        except DamagedFrameError as error:
            self._arriving.refuse(error)
            # Nothing says where the next header begins, but for what comes before the repetition.
            self._find(pack_header(control_header(Repetition(self._arriving.next)), 0, 0))
        header, size, checksum = unpack_header(self._header, self._origin.sender, self._origin.name)
        if isinstance(header.kind, (Again, Repetition, Mark, Taken)):
            self._arriving.hear(header.kind)
        elif self._arriving.admits(number_in(self._header)):
            self._sink.check(header)
            if self._take_values(header, size, checksum):
                self.received_bytes += HEADER_BYTES + size
        else:
            self._receive([self._room(size)])
        return True

    def _take_values(self, header: FrameHeader, size: int, checksum: int) -> bool:
        """Receive the payload of the next frame, and have it taken if it is as it was sent; returns whether it is."""
        if not header.is_dense:
            payload = np.empty(size, dtype=np.uint8)
            if self._is_whole(header, [payload], checksum):
                self._sink.take_frame(frame_of(header, payload))
                return True
            return False
        places = self._places(header)
        values = places if places is not None else [self._room(size).view(header.value_type.dtype)]
        if self._is_whole(header, values, checksum):
            self._lent = None
            self._sink.take(header, values, places is not None)
            return True
        self._lent = None if places is None else (header, places)
        return False

    def _places(self, header: FrameHeader) -> Sequence[Values] | None:
        if self._lent is None:
            return self._sink.places(header)
        lent, places = self._lent
        if header != lent:
            raise FrameError(f"{self._origin.name} repeated {header.label}: expected {lent.label}")
        return places

    def _is_whole(self, header: FrameHeader, values: Sequence[Values], checksum: int) -> bool:
        """Receive values; whether they are as they were sent, else they are asked for again."""
        seen = checksum_of_all(self._receive(values))
        if seen == checksum:
            self._arriving.took()
            return True
        self._arriving.refuse(DamagedFrameError(f"{header.label}: checksum {seen:#010x}, expected {checksum:#010x}"))
        return False

    def _receive(self, values: Sequence[Values]) -> list[memoryview]:
        places = payload_of(values)
        if not receive_into(self._connection, places) and any(map(len, places)):
            raise ConnectionResetError("the connection ended within a frame")
        return places

    def _find(self, header: bytes) -> None:
        """Read on until `header` has come, and not a byte beyond it."""
        window = self._header
        while window != header:
            seen = bytes(window)
            kept = next(size for size in range(len(header) - 1, -1, -1) if seen.endswith(header[:size]))
            window[:kept] = header[:kept]
            with suppress(ConnectionResetError):
                if receive_into(self._connection, [window[kept:]]):
                    continue
            self._arriving.end()

    def _room(self, size: int) -> NDArray[np.uint8]:
        if len(self._scratch) < size:
            self._scratch = np.empty(MAX_PAYLOAD_BYTES, dtype=np.uint8)
        return self._scratch[:size]


class DirectSender:
    """Writes frames to a connection in a thread of its own, in the order of `send`; urgent ones go before all others.

    `on_lost(error)` is called when the connection to `peer` breaks; `faults` is asked before each frame.
    """

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        on_lost: Callable[[TaihuError], None],
        *,
        faults: FrameFaults | None = None,
    ) -> None:
        self.sent_bytes = 0
        """Bytes of all frames so far, headers included."""
        self._connection = connection
        self._peer = peer
        self._on_lost = on_lost
        self._faults = faults or NoFrameFaults()
        self._stopped = self._is_over = False
        self._sent = SentFrames(peer)
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._urgent: deque[Item] = deque()
        self._thread = threading.Thread(target=self._run, name="direct-send", daemon=True)
        self._thread.start()

    def send(self, header: FrameHeader, pieces: Sequence[Values], *, urgent: bool = False) -> None:
        """Queue a frame; its pieces, contiguous arrays, are read when its turn comes."""
        self._put(OutgoingFrame(header, pieces), urgent=urgent)

    def put(self, frame: OutgoingFrame, *, urgent: bool = False) -> None:
        """Queue a frame that others get, too."""
        self._put(frame, urgent=urgent)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, from the sending thread, when all frames queued so far, as urgent, have been read."""
        self._put(callback, urgent=urgent)

    def after_taken(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, by any thread, when the other side has taken all frames queued so far, as urgent.

        Their arrays may be written to then; see also `after`.
        """
        self._put(WhenTaken(callback), urgent=urgent)
        self._tell_if_over()

    def say(self, word: Word) -> None:
        """Say something about frames that come; see `taihu.core.wire.repetition`."""
        self._put(partial(self._say, word), urgent=True)

    def repeat(self, number: int) -> None:
        """Send frame `number` once more, and those behind it; where that cannot be, the connection is lost."""
        self._put(partial(self._repeat, number), urgent=True)

    def taken(self, number: int) -> None:
        """The first `number` frames have been taken by the other side."""
        self._sent.taken(number)

    def give_up(self) -> None:
        """The other side has left, and wants nothing more: who waits until it has taken something is told."""
        self._sent.give_up()
        self._tell_if_over()

    def _put(self, item: Item, *, urgent: bool) -> None:
        if urgent:
            self._urgent.append(item)
            item = _look_again
        self._queue.put(item)

    def stop(self) -> None:
        """Send nothing any more but the rest of the frame that is under way; returns at once."""
        self._stopped = True
        self._queue.put(None)

    def close(self, timeout_s: float) -> None:
        """End the connection when everything queued has been sent, or after `timeout_s`; returns then."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._stopped = True
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._thread.join()

    def _run(self) -> None:
        try:
            going = True
            while going:
                item = self._queue.get()
                while self._urgent and not self._stopped:
                    self._handle(self._urgent.popleft())
                going = item is not None and not self._stopped
                if going:
                    self._handle(item)
        except OSError:
            if not self._stopped:
                self._on_lost(MemberLostError(f"{self._peer} was lost: its connection broke"))
        except TaihuError as error:
            self._on_lost(error)
        except BaseException as error:
            self._on_lost(RunError(f"internal error while sending to {self._peer}: {error!r}"))
            raise
        finally:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
            self._connection.close()
            self._is_over = True
            self._tell_if_over()

    def _tell_if_over(self) -> None:
        """Nothing is sent any more, and the other side wants nothing: tell who waits behind what is queued."""
        if not (self._is_over and self._sent.is_given_up):
            return
        with suppress(IndexError):
            while True:
                self._tell(self._urgent.popleft())
        with suppress(Empty):
            while True:
                self._tell(self._queue.get_nowait())

    def _tell(self, item: Item) -> None:
        if isinstance(item, WhenTaken):
            item.callback()

    def _handle(self, item: Item) -> None:
        if isinstance(item, OutgoingFrame):
            size = HEADER_BYTES + sum(piece.nbytes for piece in item.pieces)
            self.sent_bytes += size
            number = self._sent.add(item, size)
            if self._faults.is_due:
                self._write_with_fault(item, number)
            else:
                self._write(item.header, item.pieces, item.checksum, number)
        elif isinstance(item, WhenTaken):
            self._say(self._sent.mark(item.callback))
        elif item is not None:
            item()

    def _say(self, word: Word | None) -> None:
        if word is not None:
            self._write(control_header(word), (), 0)

    def _repeat(self, number: int) -> None:
        frames = self._sent.since(number)
        self._say(Repetition(number))
        for each, frame in enumerate(frames, number):
            self._write(frame.header, frame.pieces, frame.checksum, each)
        self._say(self._sent.marked)

    def _write_with_fault(self, frame: OutgoingFrame, number: int) -> None:
        """Write a frame with the fault that is due; where its connection breaks by that, OSError is raised."""
        fault = self._faults.take()
        buffers = _buffers(frame.header, frame.pieces, frame.checksum, number)
        if fault is FrameFault.CORRUPT:
            self._connection.sendall(turned(buffers, HEADER_BYTES))
            return
        whole = b"".join(buffers)
        if fault is FrameFault.TRUNCATE:
            self._connection.sendall(whole[: len(whole) // 2])
            # Before anybody is told, who may wait for the other side's word. It ends the way back.
            self._connection.shutdown(socket.SHUT_WR)
            raise ConnectionAbortedError("a frame was broken off")
        for _ in range(2 if fault is FrameFault.DUPLICATE else 1):
            self._connection.sendall(whole)

    def _write(self, header: FrameHeader, pieces: Sequence[Values], checksum: int, number: int = 0) -> None:
        buffers = _buffers(header, pieces, checksum, number)
        sent = self._connection.sendmsg(buffers)
        for buffer in buffers:
            if sent < len(buffer):
                self._connection.sendall(buffer[max(0, sent) :])
            sent -= len(buffer)


def _buffers(header: FrameHeader, pieces: Sequence[Values], checksum: int, number: int) -> list[memoryview]:
    """The bytes of a frame where they lie, no more of them than are sent at once."""
    if len(pieces) > MOST_PIECES:
        pieces = [np.concatenate(pieces)]
    payload = payload_of(pieces)
    return [memoryview(pack_header(header, sum(map(len, payload)), checksum, number)), *payload]


def _look_again() -> None:
    """Wakes a sender: something urgent has come."""
