"""Frames on a connection of their own (`taihu.wire.direct_connection`), straight from one arena into another.

A frame is a header of fixed size, little-endian, and its payload. The sender, which is the same for all frames of a
connection, is not repeated in them. The last bytes of the header are a union: what belongs to the frame's kind alone.
A farewell is said in gRPC's stream, not here.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.errors import FrameError, MemberLostError, RunError, TaihuError
from taihu.wire.direct_connection import MOST_PIECES, receive_into
from taihu.wire.headers import Address, At, FrameHeader, Sender, ValueType, frame_of
from taihu.wire.kinds import Encoding, Gradients, Kind, Parameters, Part, Question, RingSegment, SparseMessage, Summed
from taihu.wire.limits import MAX_PAYLOAD_BYTES
from taihu.wire.sink import Origin, Sink

__all__ = ["HEADER_BYTES", "DirectReceiver", "DirectSender", "pack_header", "unpack_header"]

Values = NDArray[Any]
Item = tuple[FrameHeader, Sequence[Values]] | Callable[[], None] | None


_MAGIC: Final = 0x74616869
# magic, kind, data type, encoding, plan, step, attempt, group, offset, count, selected, payload bytes
_COMMON: Final = "<IBBBxIQIIQQQQ"
_KIND_AT: Final = 4
_UNION_BYTES: Final = 16


@dataclass(frozen=True)
class _Layout:
    """One kind in the union: its number, the whole header, and its fields there and back."""

    number: int
    whole: struct.Struct
    fields: Callable[[Any], tuple[float, ...]]
    make: Callable[..., Kind]


def _layout(
    number: int, union: str, fields: Callable[[Any], tuple[float, ...]], make: Callable[..., Kind]
) -> _Layout:
    padding = _UNION_BYTES - struct.calcsize("<" + union)
    return _Layout(number, struct.Struct(f"{_COMMON}{union}{padding}x"), fields, make)


def _flag(value: int) -> bool:
    if value > 1:
        raise ValueError(value)
    return bool(value)


_LAYOUTS: Final = {
    Gradients: _layout(
        1, "fB", lambda kind: (kind.loss_scale, kind.skipped), lambda scale, skip: Gradients(scale, _flag(skip))
    ),
    Question: _layout(2, "", lambda _: (), Question),
    Summed: _layout(
        3, "dB", lambda kind: (kind.completed_s, kind.skipped), lambda at_s, skip: Summed(at_s, _flag(skip))
    ),
    Parameters: _layout(4, "", lambda _: (), Parameters),
    RingSegment: _layout(5, "II", lambda kind: (kind.hop, kind.gather), RingSegment),
    Part: _layout(6, "I", lambda kind: (kind.frames,), Part),
    SparseMessage: _layout(7, "II", lambda kind: (kind.round, kind.part), SparseMessage),
}
_BY_NUMBER: Final = {layout.number: layout for layout in _LAYOUTS.values()}
HEADER_BYTES: Final = struct.calcsize(_COMMON) + _UNION_BYTES


class DirectReceiver:
    """Reads frames from a connection in a thread of its own, until the other side ends it.

    `on_lost(error)` is called when the connection breaks, brings what it must not, or the sink fails; `on_ended` when
    it has ended between two frames.
    """

    def __init__(
        self,
        connection: socket.socket,
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
        header, size = unpack_header(self._header, self._origin.sender, self._origin.name)
        self._sink.check(header)
        if not header.is_dense:
            payload = np.empty(size, dtype=np.uint8)
            self._receive([payload])
            self._sink.take_frame(frame_of(header, payload))
        else:
            places = self._sink.places(header)
            values = places if places is not None else [self._room(size).view(header.value_type.dtype)]
            self._receive(values)
            self._sink.take(header, values, places is not None)
        self.received_bytes += HEADER_BYTES + size
        return True

    def _receive(self, values: Sequence[Values]) -> None:
        places = [array.view(np.uint8).data for array in values]
        if not receive_into(self._connection, places) and any(map(len, places)):
            raise ConnectionResetError("the connection ended within a frame")

    def _room(self, size: int) -> NDArray[np.uint8]:
        if len(self._scratch) < size:
            self._scratch = np.empty(MAX_PAYLOAD_BYTES, dtype=np.uint8)
        return self._scratch[:size]


class DirectSender:
    """Writes frames to a connection in a thread of its own, in the order of `send`; urgent ones go before all others.

    `on_lost(error)` is called when the connection to `peer` breaks.
    """

    def __init__(self, connection: socket.socket, peer: str, on_lost: Callable[[TaihuError], None]) -> None:
        self.sent_bytes = 0
        """Bytes of all frames so far, headers included."""
        self._connection = connection
        self._peer = peer
        self._on_lost = on_lost
        self._stopped = False
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._urgent: deque[Item] = deque()
        self._thread = threading.Thread(target=self._run, name="direct-send", daemon=True)
        self._thread.start()

    def send(self, header: FrameHeader, pieces: Sequence[Values], *, urgent: bool = False) -> None:
        """Queue a frame; its pieces, contiguous arrays, are read when its turn comes."""
        self._put((header, pieces), urgent=urgent)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, from the sending thread, when all frames queued so far, as urgent, have been read."""
        self._put(callback, urgent=urgent)

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
        except BaseException as error:
            self._on_lost(RunError(f"internal error while sending to {self._peer}: {error!r}"))
            raise
        finally:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
            self._connection.close()

    def _handle(self, item: Item) -> None:
        if callable(item):
            item()
        elif item is not None:
            self._write(*item)

    def _write(self, header: FrameHeader, pieces: Sequence[Values]) -> None:
        if len(pieces) > MOST_PIECES:
            pieces = [np.concatenate(pieces)]
        payload = [piece.view(np.uint8).data for piece in pieces]
        size = sum(map(len, payload))
        buffers = [memoryview(pack_header(header, size)), *payload]
        self.sent_bytes += HEADER_BYTES + size
        sent = self._connection.sendmsg(buffers)
        for buffer in buffers:
            if sent < len(buffer):
                self._connection.sendall(buffer[max(0, sent) :])
            sent -= len(buffer)


def _look_again() -> None:
    """Wakes a sender: something urgent has come."""


def pack_header(header: FrameHeader, payload_bytes: int) -> bytes:
    """The header of a frame with so many bytes of payload; its sender is not in it."""
    layout = _LAYOUTS[type(header.kind)]
    at, group, offset, count = header.address
    return layout.whole.pack(
        _MAGIC,
        layout.number,
        header.value_type.value,
        header.encoding.value,
        *at,
        group,
        offset,
        count,
        header.selected,
        payload_bytes,
        *layout.fields(header.kind),
    )


def unpack_header(buffer: memoryview, sender: Sender, name: str) -> tuple[FrameHeader, int]:
    """A header of `sender`, and the bytes of payload that follow it.

    Raises:
        FrameError: it is none, or makes no sense; the message calls the sender `name`.
    """
    try:
        layout = _BY_NUMBER[buffer[_KIND_AT]]
        magic, _, value_type, encoding, plan, step, attempt, group, offset, count, selected, size, *fields = (
            layout.whole.unpack(buffer)
        )
        if magic != _MAGIC:
            raise ValueError(magic)
        header = FrameHeader(
            sender,
            Address(At(plan, step, attempt), group, offset, count),
            layout.make(*fields),
            Encoding(encoding),
            ValueType(value_type),
            selected,
        )
    except (KeyError, ValueError, FrameError):
        raise FrameError(f"{name}: not the header of a frame on its connection") from None
    header.check(size)
    return header, size
