"""Both directions of a direct connection: opened, watched and ended as one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from taihu.errors import TaihuError
from taihu.wire.direct_frames import DirectReceiver, DirectSender, Origin, Sink
from taihu.wire.headers import FrameHeader

__all__ = ["FAREWELL_S", "FrameConnection"]

FAREWELL_S = 2.0
"""The time that the other side has to let a connection end in good order."""


def _untold() -> None:
    """Nobody wants to know."""


class FrameConnection:
    """Sends and receives frames over `connection`, in a thread for each direction.

    Args:
        connection: belongs to this object.
        origin: the other side.
        sink: takes what it sends, see `DirectReceiver`.
        on_lost: called, until `close`, with what broke the connection or what it brought that it must not.
        on_ended: called, until `close`, when the other side has ended its direction between two frames.
    """

    def __init__(
        self,
        connection: socket.socket,
        origin: Origin,
        sink: Sink,
        on_lost: Callable[[TaihuError], None],
        on_ended: Callable[[], None] = _untold,
    ) -> None:
        self._closed = False
        self._on_lost = on_lost
        self._on_ended = on_ended
        self._sender = DirectSender(connection.dup(), origin.name, self._lost)
        self._receiver = DirectReceiver(connection, origin, sink, self._lost, self._ended)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        return self._sender.sent_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        return self._receiver.received_bytes

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        """Queue a frame, before all that are not urgent if it is; as `DirectSender.send`."""
        self._sender.send(header, pieces, urgent=urgent)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback` when all frames queued so far, as urgent, have been read; as `DirectSender.after`."""
        self._sender.after(callback, urgent=urgent)

    def stop(self) -> None:
        """Send nothing any more but the rest of the frame that is under way; returns at once."""
        self._sender.stop()

    def finish(self) -> None:
        """Send what is queued, and end this direction; returns then, or when the other side takes too long."""
        self._sender.close(FAREWELL_S)

    def drain(self) -> None:
        """Return when everything that the other side sent has been taken, and it has ended its direction."""
        self._receiver.join()

    def close(self) -> None:
        """Cut both directions; nothing is told any more."""
        self._closed = True
        self._sender.stop()
        self._receiver.close()
        self._sender.close(FAREWELL_S)

    def _lost(self, error: TaihuError) -> None:
        if not self._closed:
            self._on_lost(error)

    def _ended(self) -> None:
        if not self._closed:
            self._on_ended()
