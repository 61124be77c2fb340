"""A few frames of HTTP/2, written by hand: calls that no client of gRPC makes."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from taihu.core.wire.base.address import split_address

__all__ = ["Connection", "message", "raw_socket"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW: Final = 4
_TIMEOUT_S: Final = 20.0


def message(content: bytes, *, compressed: bool = False) -> bytes:
    """A message as gRPC frames it: whether it is compressed, its length, and itself."""
    return struct.pack(">BI", compressed, len(content)) + content


def raw_socket(address: str, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connection to `address`, under TLS where `tls` says how.

    Raises:
        OSError: there is none; ssl.SSLError where the handshake fails, if the other side says so in it.
    """
    host, port = split_address(address)
    plain = socket.create_connection((host, port), timeout=_TIMEOUT_S)
    if tls is None:
        return plain
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except OSError:
        plain.close()
        raise


class Connection:
    """A connection that has begun HTTP/2; a context manager.

    The other side may send `window` bytes in a stream.

    Raises:
        OSError: see `raw_socket`.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, window: int = 1 << 16) -> None:
        self._scheme = "http" if tls is None else "https"
        self._address = address
        self._stream = -1
        self._socket = raw_socket(address, tls)
        self._file = self._socket.makefile("rb")
        settings = struct.pack(">HI", _INITIAL_WINDOW, window)
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()

    def send(self, content: bytes) -> None:
        """Send bytes that are no frames, or frames that are broken."""
        self._socket.sendall(content)

    def call(
        self, method: str, messages: Iterable[bytes] = (), *, encoding: str = "identity", ends: bool = True
    ) -> int:
        """Begin a call with framed `messages`, of which the last one `ends` the stream; the number of the stream."""
        self._stream += 2
        fields = {
            ":method": "POST",
            ":scheme": self._scheme,
            ":path": method,
            ":authority": self._address,
            "content-type": "application/grpc",
            "te": "trailers",
            "grpc-encoding": encoding,
        }
        block = b"".join(_field(name, value) for name, value in fields.items())
        frames = [_frame(_HEADERS, _END_HEADERS, self._stream, block)]
        frames += [_frame(_DATA, 0, self._stream, each) for each in messages]
        if ends:
            frames.append(_frame(_DATA, _END_STREAM, self._stream))
        self._socket.sendall(b"".join(frames))
        return self._stream

    def reset(self, stream: int) -> None:
        """Give up a call."""
        self._socket.sendall(_frame(_RESET, 0, stream, struct.pack(">I", 8)))

    def ended(self) -> str:
        """Wait for the end of the next stream that ends: `answered`, `reset`, or `cut` where the connection ends."""
        while (head := self._read(9)) is not None:
            kind, flags = head[3], head[4]
            if self._read(int.from_bytes(head[:3], "big")) is None:
                break
            if kind == _SETTINGS and not flags & _ACK:
                with suppress(OSError):
                    self._socket.sendall(_frame(_SETTINGS, _ACK, 0))
            elif kind == _RESET:
                return "reset"
            elif kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                return "answered"
            elif kind == _GOAWAY:
                return "cut"
        return "cut"

    def _read(self, size: int) -> bytes | None:
        try:
            content = self._file.read(size)
        except TimeoutError:
            raise
        except OSError:
            return None
        return content if len(content) == size else None


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


def _field(name: str, value: str) -> bytes:
    """A header that is in no table, in letters as they are; each shorter than 127 bytes."""
    return b"\x00" + b"".join(bytes((len(text),)) + text.encode() for text in (name, value))
