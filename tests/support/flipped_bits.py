"""A link whose bits are turned or that breaks, and that ends on one side as soon as it has ended on the other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

__all__ = ["Link", "relayed"]

Link = tuple[socket.socket, socket.socket]

_JOIN_S = 600.0
_NEVER = 1 << 60


@contextmanager
def relayed(there: Sequence[int] = (), back: Sequence[int] = (), breaks_after: int = _NEVER) -> Iterator[Link]:
    """The near and the far end of a connection on which the bits at these positions of all that passes are turned.

    It breaks when so many bytes have gone from the near to the far end.
    """
    near, near_far = socket.socketpair()
    far, far_near = socket.socketpair()
    pumps = ((near_far, far_near, there, breaks_after), (far_near, near_far, back, _NEVER))
    threads = [threading.Thread(target=_pump, args=each, daemon=True) for each in pumps]
    for thread in threads:
        thread.start()
    try:
        yield near, far
    finally:
        for end in (near, far, near_far, far_near):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(_JOIN_S)
        for end in (near, far, near_far, far_near):
            end.close()
    assert not any(thread.is_alive() for thread in threads)


def _pump(source: socket.socket, target: socket.socket, bits: Sequence[int], most: int) -> None:
    passed = 0
    with suppress(OSError):
        while passed < most and (content := bytearray(source.recv(min(most - passed, 1 << 16)))):
            for bit in bits:
                if passed <= bit // 8 < passed + len(content):
                    content[bit // 8 - passed] ^= 1 << bit % 8
            passed += len(content)
            target.sendall(content)
    # What has passed can still be read. Who sends is told, too.
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    with suppress(OSError):
        source.shutdown(socket.SHUT_RD)
    if passed == most:
        with suppress(OSError):
            source.shutdown(socket.SHUT_WR)
