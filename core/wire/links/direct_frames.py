"""Frames on a connection of their own (see `direct_connection`), straight from one arena into another.

A frame is a header of fixed size (`core.wire.frames.direct_header`), and its payload. The sender is the same for
all frames of a connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, MemberLostError, RunError, TaihuError
from taihu.core.system.queues import Empty, SimpleQueue
from taihu.core.system.sockets import SHUT_RDWR, SHUT_WR, Socket
from taihu.core.system.threads import current_thread, make_thread, spawn
from taihu.core.wire.frames.checksum import checksum_of_all
from taihu.core.wire.frames.direct_header import HEADER_BYTES, check_header, number_in, pack_header, unpack_header
from taihu.core.wire.frames.frame_faults import FrameFault, FrameFaults, NoFrameFaults, turned
from taihu.core.wire.frames.headers import FrameHeader, frame_of, payload_of
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES
from taihu.core.wire.links.direct_connection import MOST_PIECES, receive_into
from taihu.core.wire.links.sink import Origin, Sink
from taihu.core.wire.links.under_way import ArrivingFrames, OutgoingFrame

__all__ = ["HEADER_BYTES", "DirectReceiver", "DirectSender"]

Values = NDArray[Any]
Item = OutgoingFrame | Callable[[], None] | None


class DirectReceiver:
    """Reads frames from a connection in a thread of its own, until the other side ends it.

    `on_lost(error)` is called when the connection breaks, brings what it must not or what is damaged, or the sink
    fails; `on_ended` when it has ended between two frames.
    """

    def __init__(
        self,
        connection: Socket,
        origin: Origin,
        sink: Sink,
        on_lost: Callable[[TaihuError], None],
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.received_bytes = 0
        self._connection = connection
        self._origin = origin
        self._sink = sink
        self._on_lost = on_lost
        self._on_ended = on_ended
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._scratch = np.empty(0, dtype=np.uint8)
        self._arriving = ArrivingFrames(origin)
        self._thread = make_thread("direct-receive", self._run)  # known before it begins: it may be who closes
        self._thread.start()

    def join(self) -> None:
        """Return when everything that was sent has been taken."""
        self._thread.join()

    def close(self) -> None:
        """Cut the connection, if the other side has not ended it."""
        with suppress(OSError):
            self._connection.shutdown(SHUT_RDWR)
        if self._thread is not current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_frame():
                pass
            self._on_ended()
        except DamagedFrameError as error:
            self._on_lost(self._arriving.damaged(error))
            self._discard()
        except TaihuError as error:
            self._on_lost(error)
            self._discard()
        except OSError:
            self._on_lost(MemberLostError(f"{self._origin.name} was lost: its connection broke"))
        except BaseException as error:
            self._on_lost(RunError(f"internal error while taking in a frame of {self._origin.name}: {error!r}"))
            raise
        finally:
            self._connection.close()

    def _discard(self) -> None:
        """Read on to the end: the other side shall hear the reason over gRPC, not of a connection that breaks."""
        with suppress(OSError):
            while self._connection.recv_into(self._room(MAX_PAYLOAD_BYTES).data):
                pass

    def _take_frame(self) -> bool:
        """Read one frame; False when the connection has ended."""
        if not receive_into(self._connection, [self._header]):
            return False
        check_header(self._header)
        header, size, checksum = unpack_header(self._header, self._origin.sender, self._origin.name)
        if self._arriving.admits(number_in(self._header)):
            self._sink.check(header)
            self._take_values(header, size, checksum)
            self.received_bytes += HEADER_BYTES + size
        else:
            self._receive([self._room(size)])
        return True

    def _take_values(self, header: FrameHeader, size: int, checksum: int) -> None:
        """Receive the payload of the next frame, and have it taken; raises DamagedFrameError."""
        if not header.is_dense:
            payload = np.empty(size, dtype=np.uint8)
            self._receive_whole(header, [payload], checksum)
            self._sink.take_frame(frame_of(header, payload))
            return
        places = self._sink.places(header)
        values = places if places is not None else [self._room(size).view(header.value_type.dtype)]
        self._receive_whole(header, values, checksum)
        self._sink.take(header, values, places is not None)

    def _receive_whole(self, header: FrameHeader, values: Sequence[Values], checksum: int) -> None:
        seen = checksum_of_all(self._receive(values))
        if seen != checksum:
            raise DamagedFrameError(f"{header.label}: checksum {seen:#010x}, expected {checksum:#010x}")
        self._arriving.took()

    def _receive(self, values: Sequence[Values]) -> list[memoryview]:
        places = payload_of(values)
        if not receive_into(self._connection, places) and any(map(len, places)):
            raise ConnectionResetError("the connection ended within a frame")
        return places

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
        connection: Socket,
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
        self._stopped = self._is_over = self._is_given_up = False
        self._number = 0
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._urgent: deque[Item] = deque()
        self._thread = spawn("direct-send", self._run)

    def send(self, header: FrameHeader, pieces: Sequence[Values], *, urgent: bool = False) -> None:
        """Queue a frame; its pieces, contiguous arrays, are read when its turn comes."""
        self._put(OutgoingFrame(header, pieces), urgent=urgent)

    def put(self, frame: OutgoingFrame, *, urgent: bool = False) -> None:
        """Queue a frame that others get, too."""
        self._put(frame, urgent=urgent)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, from the sending thread, when all frames queued so far, as urgent, have been read.

        Their arrays may be written to then. Once the other side wants nothing more, this thread or that of `give_up`
        calls it.
        """
        self._put(callback, urgent=urgent)
        self._tell_if_over()

    def give_up(self) -> None:
        """The other side has left, and wants nothing more: who waits until something has been read is told."""
        self._is_given_up = True
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
                self._connection.shutdown(SHUT_RDWR)
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
                self._connection.shutdown(SHUT_WR)
            self._connection.close()
            self._is_over = True
            self._tell_if_over()

    def _tell_if_over(self) -> None:
        """Nothing is sent any more, and the other side wants nothing: tell who waits behind what is queued."""
        if not (self._is_over and self._is_given_up):
            return
        with suppress(IndexError):
            while True:
                self._tell(self._urgent.popleft())
        with suppress(Empty):
            while True:
                self._tell(self._queue.get_nowait())

    def _tell(self, item: Item) -> None:
        if callable(item):
            item()

    def _handle(self, item: Item) -> None:
        if isinstance(item, OutgoingFrame):
            size = HEADER_BYTES + sum(piece.nbytes for piece in item.pieces)
            self.sent_bytes += size
            buffers = _buffers(item, self._number)
            self._number += 1
            if self._faults.is_due:
                self._write_with_fault(buffers)
            else:
                self._write(buffers)
        elif item is not None:
            item()

    def _write_with_fault(self, buffers: Sequence[memoryview]) -> None:
        """Write a frame with the fault that is due; where its connection breaks by that, OSError is raised."""
        fault = self._faults.take()
        if fault is FrameFault.CORRUPT:
            self._connection.sendall(turned(buffers, HEADER_BYTES))
            return
        whole = b"".join(buffers)
        if fault is FrameFault.TRUNCATE:
            self._connection.sendall(whole[: len(whole) // 2])
            # Before anybody is told, who may wait for the other side's word. It ends the way back.
            self._connection.shutdown(SHUT_WR)
            raise ConnectionAbortedError("a frame was broken off")
        for _ in range(2 if fault is FrameFault.DUPLICATE else 1):
            self._connection.sendall(whole)

    def _write(self, buffers: Sequence[memoryview]) -> None:
        sent = self._connection.sendmsg(buffers)
        for buffer in buffers:
            if sent < len(buffer):
                self._connection.sendall(buffer[max(0, sent) :])
            sent -= len(buffer)


def _buffers(frame: OutgoingFrame, number: int) -> list[memoryview]:
    """The bytes of a frame where they lie, no more of them than are sent at once."""
    pieces = frame.pieces
    if len(pieces) > MOST_PIECES:
        pieces = [np.concatenate(pieces)]
    payload = payload_of(pieces)
    return [memoryview(pack_header(frame.header, sum(map(len, payload)), frame.checksum, number)), *payload]


def _look_again() -> None:
    """Wakes a sender: something urgent has come."""
