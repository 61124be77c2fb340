"""The connection of a gRPC channel: it comes with the first call, and again after it was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from taihu.explore.network.attempts import Attempt
from taihu.explore.network.connections import End, Loss
from taihu.explore.network.network import Network

if TYPE_CHECKING:
    from taihu.explore.network.client_call import ClientCall
    from taihu.explore.tasks import Process

__all__ = ["Link", "Subchannel"]

_FIRST_BACKOFF_MS: Final = 1_000
_LONGEST_BACKOFF_MS: Final = 120_000
_BACKOFF_GROWTH: Final = 1.6
_TRY_MS: Final = 20_000
_KEEPALIVE_TIMEOUT_MS: Final = 20_000


class Transport(Protocol):
    """The server's side of a connection."""

    def begin(self, call: ClientCall) -> None:
        """A call has come."""
        ...


class Link:
    """One connection of a channel, and the calls on it.

    Args:
        subchannel: is told when it can have no more calls.
        end: of the connection.
    """

    def __init__(self, subchannel: Subchannel, end: End) -> None:
        self._subchannel = subchannel
        self.end = end
        self.calls: dict[ClientCall, None] = {}
        self._is_retired = False
        end.handler = self

    def closed(self) -> None:
        """The server has gone."""
        self.end.leave()
        self.lost(Loss.CLOSED)

    def lost(self, loss: Loss) -> None:
        """Take in that the connection is lost."""
        self._subchannel.forget(self)
        for call in list(self.calls):
            # A server that stops has said which calls it has taken: others are none that it may have answered.
            if not (self._is_retired and call.goes_again()):
                call.fail_unavailable(f"Stream removed ({loss.value})")

    def begin_there(self, call: ClientCall) -> None:
        """`call` has come to the server."""
        there = cast(Transport, self.end.peer.handler)
        there.begin(call)

    def retired(self) -> None:
        """The server takes no more calls here; those that there are go on."""
        self._is_retired = True
        self._subchannel.forget(self)
        self._end_if_idle()

    def forget(self, call: ClientCall) -> None:
        """`call` has ended, or goes on elsewhere."""
        self.calls.pop(call, None)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_retired and not self.calls and not self.end.is_gone:
            self.end.close()


class Subchannel:
    """The one connection of a channel, and the calls that wait for it.

    Args:
        network: in which it connects.
        process: whose channel it is.
        host: to connect to.
        port: to connect to.
        options: of the channel, by their names in gRPC.
    """

    def __init__(self, network: Network, process: Process, host: str, port: int, options: dict[str, Any]) -> None:
        self._network = network
        self._process = process
        self._host = host
        self._port = port
        self._try_s = options.get("grpc.min_reconnect_backoff_ms", _TRY_MS) / 1000.0
        self._first_backoff_s = options.get("grpc.initial_reconnect_backoff_ms", _FIRST_BACKOFF_MS) / 1000.0
        self._longest_backoff_s = options.get("grpc.max_reconnect_backoff_ms", _LONGEST_BACKOFF_MS) / 1000.0
        self._keepalive_ms = options.get("grpc.keepalive_time_ms")
        self._keepalive_timeout_ms = options.get("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS)
        self._backoff_s = self._first_backoff_s
        self._link: Link | None = None
        self._attempt: Attempt | None = None
        # When the next try begins, and when the one that goes on is given up.
        self._timer: int | None = None
        self._try_timer = 0
        # Set while the last try has failed: why, and when the next one may be.
        self._failure = ""
        self._next_s = 0.0
        self._waiting: dict[ClientCall, None] = {}
        self._is_closed = False

    def begin(self, call: ClientCall) -> None:
        """Send `call` now, or as soon as there is a connection; it fails where there is none and it does not wait."""
        if self._link is not None:
            call.attach(self._link)
            return
        if self._failure and self._network.scheduler.now < self._next_s and not call.waits_for_ready:
            call.fail_unavailable(self._failure)
            return
        self._waiting[call] = None
        self._connect()

    def dismiss(self, call: ClientCall) -> None:
        """`call` waits no more."""
        self._waiting.pop(call, None)

    def forget(self, link: Link) -> None:
        """`link` takes no more calls."""
        if self._link is link:
            self._link = None

    def close(self) -> None:
        """End the connection; its calls have been ended."""
        self._is_closed = True
        if self._attempt is not None:
            self._attempt.abandon()
            self._attempt = None
        if self._link is not None:
            self._link.end.close()
            self._link = None

    def _connect(self) -> None:
        if self._attempt is not None or self._timer is not None or self._is_closed:
            return
        scheduler = self._network.scheduler
        if self._failure and scheduler.now < self._next_s:
            self._timer = scheduler.call_at(self._next_s - scheduler.now, self._try)
        else:
            self._try()

    def _try(self) -> None:
        self._timer = None
        if self._is_closed or self._process.is_dead or not self._waiting:
            return
        attempt = self._attempt = self._network.connect("grpc", self._process, self._host, self._port, self._answered)

        def give_up() -> None:
            if self._attempt is attempt:
                attempt.abandon()
                self._answered(None, "connection attempt timed out before receiving SETTINGS frame")

        self._try_timer = self._network.scheduler.call_at(self._try_s, give_up)

    def _answered(self, end: End | None, why: str) -> None:
        self._attempt = None
        self._network.scheduler.call_off(self._try_timer)
        if end is None:
            self._failed(why)
            return
        self._failure, self._backoff_s = "", self._first_backoff_s
        end.needs_process = True
        if self._keepalive_ms is not None:
            end.silence_s = (self._keepalive_ms + self._keepalive_timeout_ms) / 1000.0
        link = self._link = Link(self, end)
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.attach(link)

    def _failed(self, why: str) -> None:
        scheduler = self._network.scheduler
        self._failure = (
            f"failed to connect to all addresses; last error: UNKNOWN: ipv4:{self._host}:{self._port}: "
            f"Failed to connect to remote host: {why}"
        )
        self._next_s = scheduler.now + self._backoff_s * self._network.chance.uniform(0.8, 1.2)
        self._backoff_s = min(_BACKOFF_GROWTH * self._backoff_s, self._longest_backoff_s)
        for call in [each for each in self._waiting if not each.waits_for_ready]:
            call.fail_unavailable(self._failure)
        if self._waiting:
            self._connect()
