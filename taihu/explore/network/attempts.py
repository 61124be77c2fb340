"""Tries to connect: they go on until they are answered, or nobody waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from taihu.explore.network.connections import Connection, End, Kind, Loss
from taihu.explore.tasks import Process

if TYPE_CHECKING:
    from taihu.explore.network.network import Listener, Network

__all__ = ["Attempt"]

# A kernel sends again what nobody has answered, after 1 s, 2 s, 4 s and so on.
_SYN_S: Final = 1.0


class Attempt:
    """One try to connect; it goes on until it is answered, or abandoned."""

    def __init__(
        self,
        network: Network,
        process: Process,
        *,
        kind: Kind,
        host: str,
        port: int,
        done: Callable[[End | None, str], None],
    ) -> None:
        self._network = network
        self._kind = kind
        self._process = process
        self._host = host
        self._port = port
        self._done: Callable[[End | None, str], None] | None = done
        self._opened: End | None = None
        self._again_s = _SYN_S

    def abandon(self) -> None:
        """Nobody waits for it any more: what it has opened, and not been told of yet, is closed."""
        self._done = None
        if self._opened is not None:
            self._opened.close()

    def arrive(self) -> None:
        """The first word has come to the other side, or is lost and sent again."""
        network = self._network
        if self._done is None:
            return
        listener = network.listening(self._host, self._port)
        if listener is None and not network.is_silent(self._host, self._port):
            network.scheduler.call_at(network.delay(), lambda: self._end(None, "Connection refused"))
            return
        connection = None if listener is None else self._taken_in(listener)
        if connection is None:
            network.scheduler.call_at(self._again_s, self.arrive)
            self._again_s = min(2 * self._again_s, 32.0)
            return
        end = self._opened = connection.opener
        end.handler = self
        # Before all that the other side says on it.
        end.peer.out.send(lambda: self._end(end, ""))

    def closed(self) -> None:
        """It has ended before it was there."""
        self._end(None, "Connection reset by peer")

    def lost(self, loss: Loss) -> None:
        """Take in that the connection is lost."""
        self._end(None, loss.value)

    def _taken_in(self, listener: Listener) -> Connection | None:
        network, other = self._network, listener.process
        if not (network.passes(self._process, other) and network.passes(other, self._process)):
            return None
        # A kernel takes connections in for a process that is held; what speaks HTTP/2 is the process.
        if listener.kind != self._kind or (self._kind == "grpc" and other.is_stopped):
            return None
        return network.connected(self._kind, self._process, listener, self._port)

    def _end(self, end: End | None, why: str) -> None:
        done, self._done, self._opened = self._done, None, None
        if done is None or self._process.is_dead:
            if end is not None:
                end.close()
        else:
            done(end, why)
