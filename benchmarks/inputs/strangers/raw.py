"""Connections of strangers whose bytes no client of gRPC sends: broken frames, half calls, other protocols."""

from __future__ import annotations

import random
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from benchmarks.inputs.strangers.calls import METHODS, Statuses, broken
from benchmarks.inputs.strangers.http2 import Connection, message, raw_socket
from benchmarks.inputs.strangers.target import Target, handshake
from taihu.core.security.files import CertificateFiles

__all__ = ["compressed", "frames", "half_open", "handshakes", "no_http2", "slow", "taking_nothing"]

_WATCH: Final = "/grpc.health.v1.Health/Watch"
_CALLS_A_CONNECTION: Final = 20
# Of HTTP/2 after its preface: too long a frame, data of no stream, headers of no table, settings and pings in
# floods, headers that go on for ever, a priority before itself, a window beyond all bounds.
_FRAMES: Final = (
    b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    b"\x00\x00\x04\x00\x01\x00\x00\x00\x00oops",
    b"\x00\x00\x03\x01\x05\x00\x00\x00\x01\xff\xff\xff",
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 200,
    b"\x00\x00\x08\x06\x00\x00\x00\x00\x00pingping" * 200,
    b"\x00\x00\x00\x01\x00\x00\x00\x00\x01" + b"\x00\x00\x01\x09\x00\x00\x00\x00\x01\x00" * 500,
    b"\x00\x00\x05\x02\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00",
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff" * 2,
)
_OTHERS: Final = (
    b"GET / HTTP/1.1\r\nHost: taihu\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    b"\x00" * 1000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r",
    b"",
)


def compressed(target: Target, count: int) -> Statuses:
    """Messages that say that they are compressed, and are not, or in a way that nobody knows."""

    def call(connection: Connection, number: int) -> None:
        encoding = ("gzip", "deflate", "identity", "nobody-knows-it")[number % 4]
        content = message(b"\x1f\x8b" + broken(number), compressed=True)
        connection.call(METHODS[number % len(METHODS)], [content], encoding=encoding)

    return _calls(target, count, call)


def half_open(target: Target, count: int) -> Statuses:
    """Calls that are given up before their request, within it, and behind it."""

    def call(connection: Connection, number: int) -> None:
        content = message(broken(number) + b"\x00" * 100)
        stream = connection.call(
            METHODS[number % len(METHODS)], [content[: (0, 3, 50, None)[number % 4]]], ends=False
        )
        if number % 3:
            connection.reset(stream)

    return _calls(target, count, call, waits=False)


def frames(target: Target, count: int) -> Statuses:
    """Frames of HTTP/2 that are none, after a good beginning."""
    return _connections(count, lambda number: _frames(target, number))


def _frames(target: Target, number: int) -> str:
    with target.connection() as connection:
        connection.send(_FRAMES[number % len(_FRAMES)])
        connection.send(random.Random(number).randbytes(200))  # noqa: S311
        return connection.ended()


def no_http2(target: Target, count: int) -> Statuses:
    """Other protocols, beginnings and nothing, by TCP alone."""
    return _connections(count, lambda number: _told(raw_socket(target.address), _OTHERS[number % len(_OTHERS)]))


def handshakes(target: Target, count: int, others: CertificateFiles | None = None) -> Statuses:
    """Handshakes without a certificate, with one of `others`, and with half of a word."""

    def shake(number: int) -> str:
        if number % 3 == 2:
            return _told(raw_socket(target.address), b"\x16\x03\x01\x02\x00\x01" + bytes(100))
        return _told(raw_socket(target.address, handshake(others if number % 3 else None)), b"PRI")

    return _connections(count, shake)


def _told(connection: socket.socket, content: bytes) -> str:
    with connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    return "cut"


@contextmanager
def slow(target: Target, count: int) -> Iterator[Callable[[], None]]:
    """Connections that send a byte of HTTP/2's beginning whenever what is yielded is called."""
    with ExitStack() as stack:
        connections = [stack.enter_context(raw_socket(target.address)) for _ in range(count)]

        def one_more() -> None:
            for connection in connections:
                with suppress(OSError):
                    connection.sendall(b"P")

        yield one_more


@contextmanager
def taking_nothing(target: Target, count: int) -> Iterator[None]:
    """Watchers of the health who take none of what they are told."""
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(target.connection(window=0))
            connection.call(_WATCH, [message(b"")])
        yield


def _calls(target: Target, count: int, call: Callable[[Connection, int], None], *, waits: bool = True) -> Statuses:
    """Calls on connections for some of them, which may be cut at any of them."""
    statuses: Statuses = Counter()
    for start in range(0, count, _CALLS_A_CONNECTION):
        numbers = range(start, min(count, start + _CALLS_A_CONNECTION))
        with target.connection() as connection:
            for number in numbers:
                statuses[_end(lambda: _called(connection, call, number, waits=waits))] += 1  # noqa: B023 - at once
    return statuses


def _called(connection: Connection, call: Callable[[Connection, int], None], number: int, *, waits: bool) -> str:
    call(connection, number)
    return connection.ended() if waits else "left"


def _connections(count: int, end: Callable[[int], str]) -> Statuses:
    return Counter(_end(lambda: end(number)) for number in range(count))  # noqa: B023 - called at once


def _end(wait: Callable[[], str]) -> str:
    try:
        return wait()
    except ssl.SSLError:
        return "refused by TLS"
    except TimeoutError:
        return "no end"
    except OSError:
        return "cut"
