"""Links that flip bits: between two sockets, and inside of what a process takes in."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from crc32c import crc32c

from taihu.allreduce.ring import kernel_ring
from taihu.core.wire.frames.format import Opening, read_message
from taihu.core.wire.frames.headers import Frame
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.links import inbox
from taihu.core.wire.links.connection import PlainConnection
from taihu.kernels.ring_pass import run_pass

_MORE_THAN_A_HEADER = 300

__all__ = ["Flips", "flipped", "wired"]


def flipped(content: bytes, bit: int) -> bytes:
    """`content` with one bit turned."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@contextmanager
def wired(there: Sequence[int] = (), back: Sequence[int] = ()) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection on which the bits at these positions of all that passes are turned."""
    near, near_far = socket.socketpair()
    far, far_near = socket.socketpair()
    threads = [
        threading.Thread(target=_pump, args=(near_far, far_near, there), daemon=True),
        threading.Thread(target=_pump, args=(far_near, near_far, back), daemon=True),
    ]
    for thread in threads:
        thread.start()
    yield near, far
    for end in (near, far, near_far, far_near):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for end in (near, far, near_far, far_near):
        end.close()


def _pump(source: socket.socket, target: socket.socket, bits: Sequence[int]) -> None:
    passed = 0
    with suppress(OSError):
        while content := bytearray(source.recv(1 << 16)):
            for bit in bits:
                if passed <= bit // 8 < passed + len(content):
                    content[bit // 8 - passed] ^= 1 << bit % 8
            passed += len(content)
            target.sendall(content)
        target.shutdown(socket.SHUT_WR)


class Flips:
    """Turns one bit in every frame that `chosen(number)` says, of all that this process takes in, from 0 on.

    A sum of a kernel's around a ring counts as one: the bit is one of a checksum that goes with its first values.

    `chosen` returns None, or a number from which the bit is drawn; meanwhile `link` is another value for every
    connection, and for every direction of a stream. With `damages_values` the last bit of all that is longer than a
    header is turned, too.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, chosen: Callable[[int], int | None]) -> None:
        self.seen = 0
        self.made = 0
        self.link: object = None
        self.damages_values = False
        self._chosen = chosen
        self._lock = threading.Lock()
        self._read_into = PlainConnection.read_into

        def read_into(connection: PlainConnection, places: Sequence[memoryview]) -> bool:
            return self._receive_into(connection, places)

        monkeypatch.setattr(PlainConnection, "read_into", read_into)
        monkeypatch.setattr(inbox, "read_message", self._read_message)
        monkeypatch.setattr(kernel_ring, "run_pass", self._pass_of_a_kernel)

    def _next(self, size: int, link: object) -> int | None:
        with self._lock:
            self.link = link
            self.seen += 1
            drawn = self._chosen(self.seen - 1)
            if self.damages_values and size > _MORE_THAN_A_HEADER:
                drawn = 8 * size - 1
            self.made += drawn is not None
            return drawn

    def _receive_into(self, connection: PlainConnection, places: Sequence[memoryview]) -> bool:
        came = self._read_into(connection, places)
        size = sum(map(len, places))
        drawn = self._next(size, _ends_of(connection)) if came and size else None
        if drawn is not None:
            at, bit = divmod(drawn % (8 * size), 8)
            for place in places:
                if at < len(place):
                    place[at] ^= 1 << bit
                    break
                at -= len(place)
        return came

    def _read_message(self, message: bytes, sender: Sender, name: str) -> tuple[Frame, Opening]:
        drawn = self._next(len(message), threading.get_ident())  # a thread reads a direction to its end
        came = message if drawn is None else flipped(message, drawn % (8 * len(message)))
        return read_message(came, sender, name)

    def _pass_of_a_kernel(
        self, states: Any, pieces: Any, frames: Any, checksums: Any, values: Any, *rest: Any
    ) -> int:
        state = states[0]
        has_begun = state["received"] or state["received_bytes"] or state["sent"] or state["sent_bytes"]
        drawn = None if has_begun or not state["own"] else self._next(0, threading.get_ident())
        if drawn is not None:
            row = drawn % int(state["own"])
            memory, checksum = values.view("u1"), 0
            for start, size in pieces[frames[row, 0] : frames[row, 1]]:
                checksum = crc32c(memory[start : start + size], checksum)
            checksums[row] = checksum ^ 1 << drawn % 32
        return run_pass(states, pieces, frames, checksums, values, *rest)


def _ends_of(connection: PlainConnection) -> object:
    with suppress(OSError):  # it is being closed
        return frozenset((connection._socket.getsockname(), connection._socket.getpeername()))
    return connection
