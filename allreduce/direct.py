"""Values over a TCP connection of their own, straight from the arena of one worker into that of another.

gRPC copies a message several times more than the kernel does, mostly while it holds Python's lock. So where it can be
had, the values between two workers take a connection beside the gRPC stream: negotiated and authorised over gRPC
(`PeerService.OpenConnection` gives a port and a token that is good once), and given up for the stream if it cannot be
opened. A frame is a header of fixed size and the values; the header is little-endian.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hmac import compare_digest
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.errors import FrameError, MemberLostError, TaihuError
from taihu.wire.codec import MAX_PAYLOAD_BYTES, Frame, FrameHeader, ValueType
from taihu.wire.identity import WorkerIdentity

__all__ = ["HEADER_BYTES", "TOKEN_BYTES", "DirectListener", "DirectReceiver", "DirectSender", "Sink"]

TOKEN_BYTES: Final = 16
_HEADER: Final = struct.Struct("<IIQIIQQ")
HEADER_BYTES: Final = _HEADER.size
_MAGIC: Final = 0x74616868
_HANDSHAKE_S: Final = 5.0
# Linux takes at most 1024 pieces at once.
_MOST_PIECES: Final = 512

Item = tuple[FrameHeader, Sequence[NDArray[Any]]] | Callable[[], None] | None


@dataclass(frozen=True)
class Sink:
    """Where received values go.

    `destination(header)` gives the place in which values are received without a copy, or None when they are added to
    what is there; `take(header, values, in_place)` is called when they are complete; it reads them before it returns.
    `take_sparse(frame)` gets sparse frames, and may keep them.
    """

    destination: Callable[[FrameHeader], NDArray[Any] | None]
    take: Callable[[FrameHeader, NDArray[Any], bool], None]
    take_sparse: Callable[[Frame], None]


class DirectListener:
    """Accepts, on every interface, one connection for every token that `expect` gave out."""

    def __init__(self) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=64)
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._expected: dict[bytes, Callable[[socket.socket], None]] = {}
        self._thread = threading.Thread(target=self._accept, name="direct-accept", daemon=True)
        self._thread.start()

    def expect(self, on_connection: Callable[[socket.socket], None]) -> bytes:
        """A token; the first connection that says it is handed to `on_connection`."""
        token = secrets.token_bytes(TOKEN_BYTES)
        with self._lock:
            self._expected[token] = on_connection
        return token

    def close(self) -> None:
        """Stop listening; connections that were handed on stay."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            # A stranger that says nothing must not keep others waiting.
            threading.Thread(target=self._greet, args=(connection,), name="direct-greet", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(_HANDSHAKE_S)
        said = bytearray(TOKEN_BYTES)
        try:
            complete = _receive(connection, memoryview(said))
        except OSError:
            complete = False
        on_connection = self._claim(bytes(said)) if complete else None
        if on_connection is None:
            connection.close()
            return
        connection.settimeout(None)
        on_connection(connection)

    def _claim(self, said: bytes) -> Callable[[socket.socket], None] | None:
        with self._lock:
            known = [token for token in self._expected if compare_digest(token, said)]
            return self._expected.pop(known[0]) if known else None


class DirectReceiver:
    """Reads frames from a connection in a thread of its own, until the other side ends it.

    `on_lost(error)` is called when the connection breaks or brings what it must not.
    """

    def __init__(
        self,
        connection: socket.socket,
        sender: WorkerIdentity,
        sink: Sink,
        on_lost: Callable[[TaihuError], None],
    ) -> None:
        self.received_bytes = 0
        self._connection = connection
        self._peer = f"worker {sender.rank}"
        self._sender = sender
        self._sink = sink
        self._on_lost = on_lost
        self._scratch = np.empty(MAX_PAYLOAD_BYTES, dtype=np.uint8)
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
        except TaihuError as error:
            self._on_lost(error)
            self._discard()
        except OSError:
            self._on_lost(MemberLostError(f"{self._peer} was lost: its connection broke"))
        finally:
            self._connection.close()

    def _discard(self) -> None:
        """Read on to the end: the other side shall hear the reason over gRPC, not of a connection that breaks."""
        with suppress(OSError):
            while self._connection.recv_into(self._scratch.data):
                pass

    def _take_frame(self) -> bool:
        """Read one frame; False when the connection has ended."""
        data = bytearray(HEADER_BYTES)
        if not _receive(self._connection, memoryview(data)):
            return False
        header = self._parse(data)
        dtype = header.value_type.dtype
        destination = self._sink.destination(header)
        values = destination
        if values is None:
            values = self._scratch[: header.count * dtype.itemsize].view(dtype)
        if not _receive(self._connection, _bytes_of(values)) and header.count:
            raise MemberLostError(f"{self._peer} was lost: its connection ended within a frame")
        self.received_bytes += HEADER_BYTES + values.nbytes
        self._sink.take(header, values, destination is not None)
        return True

    def _parse(self, data: bytearray) -> FrameHeader:
        magic, value_type, step, group, hop, offset, count = _HEADER.unpack(data)
        kinds = {kind.value: kind for kind in ValueType}
        if magic != _MAGIC or value_type not in kinds:
            raise FrameError(f"{self._peer}: not the header of a frame on its connection")
        kind = kinds[value_type]
        if count * kind.dtype.itemsize > MAX_PAYLOAD_BYTES:
            raise FrameError(f"{self._peer}: a frame of {count} values; expected at most {MAX_PAYLOAD_BYTES} bytes")
        job, rank, incarnation = self._sender.job, self._sender.rank, self._sender.incarnation
        return FrameHeader(job, incarnation, 0, step, group, offset, count, rank, value_type=kind, hop=hop)


class DirectSender:
    """Writes frames to a connection in a thread of its own, in the order of `send`.

    `on_lost(error)` is called when the connection breaks.
    """

    def __init__(self, connection: socket.socket, peer: str, on_lost: Callable[[TaihuError], None]) -> None:
        self.sent_bytes = 0
        self._connection = connection
        self._peer = peer
        self._on_lost = on_lost
        self._stopped = False
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="direct-send", daemon=True)
        self._thread.start()

    @classmethod
    def connect(
        cls, host: str, port: int, token: bytes, peer: str, on_lost: Callable[[TaihuError], None]
    ) -> DirectSender:
        """Open the connection; raises OSError when it cannot be opened."""
        connection = socket.create_connection((host, port), timeout=_HANDSHAKE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token)
        connection.settimeout(None)
        return cls(connection, peer, on_lost)

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> None:
        """Queue a frame; its pieces, contiguous arrays, are read when its turn comes."""
        self._queue.put((header, pieces))

    def after(self, callback: Callable[[], None]) -> None:
        """Call `callback`, from the sending thread, when all frames queued so far have been read."""
        self._queue.put(callback)

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
            while (item := self._queue.get()) is not None and not self._stopped:
                if callable(item):
                    item()
                else:
                    self._write(*item)
        except OSError:
            if not self._stopped:
                self._on_lost(MemberLostError(f"{self._peer} was lost: its connection broke"))
        finally:
            self._connection.close()

    def _write(self, header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> None:
        packed = _HEADER.pack(
            _MAGIC, header.value_type.value, header.step, header.group, header.hop, header.offset, header.count
        )
        if len(pieces) > _MOST_PIECES:
            pieces = [np.concatenate(pieces)]
        buffers = [memoryview(packed), *map(_bytes_of, pieces)]
        self.sent_bytes += sum(map(len, buffers))
        sent = self._connection.sendmsg(buffers)
        for buffer in buffers:
            if sent < len(buffer):
                self._connection.sendall(buffer[max(0, sent) :])
            sent -= len(buffer)


def _bytes_of(values: NDArray[Any]) -> memoryview:
    return values.view(np.uint8).data


def _receive(connection: socket.socket, buffer: memoryview) -> bool:
    """Fill `buffer`; False when the connection ended before its first byte."""
    filled = 0
    while filled < len(buffer):
        count = connection.recv_into(buffer[filled:], len(buffer) - filled, socket.MSG_WAITALL)
        if not count:
            if filled:
                raise ConnectionResetError("the connection ended within a frame")
            return False
        filled += count
    return True
