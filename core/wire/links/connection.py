"""Connections that frames take beside gRPC: a socket, or under TLS two of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from taihu.core.security.sealing import SealedSocket
from taihu.core.system.sockets import MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, SHUT_RDWR, SHUT_WR, Socket
from taihu.core.system.threads import Lock

MOST_PIECES: Final = 512
"""The most arrays that are sent or received at once; Linux takes at most 1024."""
# Bytes of a record of TLS, which is sealed and opened as a whole.
_RECORD_BYTES: Final = 16384


class Connection(Protocol):
    """A connection: one thread may write to it while another one reads from it; any thread may cut it.

    All but `cut` and the closing raise OSError where it is broken.
    """

    def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Write at most `MOST_PIECES` buffers of bytes, one behind the other."""

    def read_into(self, places: Sequence[memoryview]) -> bool:
        """Fill `places`, of bytes, one after another; False when the connection ended before the first byte.

        Raises:
            ConnectionResetError: it ended later.
        """

    def skip(self, room: memoryview) -> int:
        """Read something into `room`; returns its bytes, 0 at the end."""

    def is_open(self) -> bool:
        """Whether the other side has neither ended the connection nor cut it; nobody reads from it now."""

    def end(self) -> None:
        """Have the other side read an end behind what has been written."""

    def cut(self) -> None:
        """End both directions at once: who reads or writes is told."""

    def close_reading(self) -> None:
        """Give back the direction that is read, which nobody reads any more."""

    def close_writing(self) -> None:
        """Give back the other one."""

    def close(self) -> None:
        """Give back both."""

    def alone(self) -> Socket | None:
        """The socket of both directions, for who reads and writes it without this object, which is of no use then.

        None where there is none, since TLS lies between.
        """


class PlainConnection:
    """A connection in plain text; `socket` belongs to it."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        # Each direction closes a descriptor of its own.
        self._outgoing = socket.dup()

    def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """As `Connection.write`."""
        sent = self._outgoing.sendmsg(buffers)
        for buffer in buffers:
            if sent < len(buffer):
                self._outgoing.sendall(memoryview(buffer)[max(0, sent) :])
            sent -= len(buffer)

    def read_into(self, places: Sequence[memoryview]) -> bool:
        """As `Connection.read_into`."""
        rest = list(filter(len, places))
        begun = False
        while rest:
            count = self._socket.recvmsg_into(rest[:MOST_PIECES], 0, MSG_WAITALL)[0]
            if not count:
                return _ended(begun)
            begun = True
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if count:
                rest[0] = rest[0][count:]
        return True

    def skip(self, room: memoryview) -> int:
        """As `Connection.skip`."""
        return self._socket.recv_into(room)

    def is_open(self) -> bool:
        """As `Connection.is_open`."""
        return _is_open(self._socket)

    def end(self) -> None:
        """As `Connection.end`."""
        self._outgoing.shutdown(SHUT_WR)

    def cut(self) -> None:
        """As `Connection.cut`."""
        for socket in (self._socket, self._outgoing):  # either may be closed already
            with suppress(OSError):
                socket.shutdown(SHUT_RDWR)

    def close_reading(self) -> None:
        """As `Connection.close_reading`."""
        self._socket.close()

    def close_writing(self) -> None:
        """As `Connection.close_writing`."""
        self._outgoing.close()

    def close(self) -> None:
        """As `Connection.close`."""
        self.close_reading()
        self.close_writing()

    def alone(self) -> Socket:
        """As `Connection.alone`."""
        self._outgoing.close()
        return self._socket


class SealedConnection:
    """A connection under TLS, whose directions have a socket each: one under TLS is for one thread at a time.

    Args:
        incoming: is read alone, from now on.
        outgoing: is written to alone.

    Attributes:
        writing: is held by whoever writes.
    """

    def __init__(self, incoming: SealedSocket, outgoing: SealedSocket) -> None:
        self.writing = Lock()
        self._incoming = incoming
        self._outgoing = outgoing

    def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """As `Connection.write`. Less than a record goes with what follows."""
        with self.writing:
            self._write(buffers)

    def _write(self, buffers: Sequence[bytes | memoryview]) -> None:
        begun = bytearray()
        for buffer in buffers:
            rest = memoryview(buffer)
            if begun:
                count = _RECORD_BYTES - len(begun)
                begun += rest[:count]
                rest = rest[count:]
                if len(begun) == _RECORD_BYTES:
                    self._outgoing.sendall(begun)
                    begun = bytearray()
            whole = len(rest) // _RECORD_BYTES * _RECORD_BYTES
            if whole:
                self._outgoing.sendall(rest[:whole])
            begun += rest[whole:]
        if begun:
            self._outgoing.sendall(begun)

    def read_into(self, places: Sequence[memoryview]) -> bool:
        """As `Connection.read_into`."""
        begun = False
        for place in places:
            filled = 0
            while filled < len(place):
                count = self._incoming.recv_into(place[filled:])
                if not count:
                    return _ended(begun)
                begun = True
                filled += count
        return True

    def skip(self, room: memoryview) -> int:
        """As `Connection.skip`."""
        return self._incoming.recv_into(room)

    def is_open(self) -> bool:
        """As `Connection.is_open`."""
        return self._incoming.pending() > 0 or _is_open(self._incoming)

    # An SSLSocket that is shut down or reads by flags would go on in plain text: the socket below is asked.

    def end(self) -> None:
        """As `Connection.end`."""
        Socket.shutdown(self._outgoing, SHUT_WR)

    def cut(self) -> None:
        """As `Connection.cut`."""
        for socket in (self._incoming, self._outgoing):
            with suppress(OSError):
                Socket.shutdown(socket, SHUT_RDWR)

    def close_reading(self) -> None:
        """As `Connection.close_reading`."""
        self._incoming.close()

    def close_writing(self) -> None:
        """As `Connection.close_writing`."""
        self._outgoing.close()

    def close(self) -> None:
        """As `Connection.close`."""
        self.close_reading()
        self.close_writing()

    def alone(self) -> None:
        """As `Connection.alone`."""


def _ended(begun: bool) -> bool:
    """False at the end of a connection; raises where a frame had `begun`."""
    if begun:
        raise ConnectionResetError("the connection ended within a frame")
    return False


def _is_open(socket: Socket) -> bool:
    try:
        return Socket.recv(socket, 1, MSG_PEEK | MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
