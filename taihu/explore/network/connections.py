"""Connections in memory: two ends, and a pipe in each direction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Literal, Protocol

from taihu.explore.tasks import Process

if TYPE_CHECKING:
    from taihu.explore.network.network import Network

__all__ = ["Connection", "End", "Handler", "Kind", "Loss", "Pipe"]


Kind = Literal["grpc", "tcp"]
"""The language that is spoken on a connection."""


class Loss(Enum):
    """The way in which an end learns that its connection is lost."""

    RESET = "Connection reset by peer"
    TIMEOUT = "Connection timed out"
    CLOSED = "Socket closed"


class Handler(Protocol):
    """The one that an end belongs to. It is told between tasks: it waits for nothing, and passes no point."""

    def closed(self) -> None:
        """The other side has closed the connection, behind all that it sent."""
        ...

    def lost(self, loss: Loss) -> None:
        """The connection is lost: nothing comes any more, and nothing goes."""
        ...


class Pipe:
    """One direction of a connection: what is sent arrives in order, each after a delay of its own.

    Args:
        network: whose delays they are.
        connection: that it belongs to.
        sender: the end at which things go in.
        receiver: the end at which they arrive.
    """

    __slots__ = (
        "_held",
        "_last_s",
        "_sent",
        "_timer",
        "connection",
        "held_since_s",
        "network",
        "receiver",
        "sender",
    )

    def __init__(self, network: Network, connection: Connection, sender: End, receiver: End) -> None:
        self.network = network
        self.connection = connection
        self.sender = sender
        self.receiver = receiver
        self.held_since_s = 0.0
        self._sent: deque[tuple[float, Callable[[], None]]] = deque()
        self._last_s = 0.0
        self._held = 0
        self._timer: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether nothing arrives for now."""
        return self._held > 0

    def send(self, arrive: Callable[[], None]) -> None:
        """Have `arrive` called, between tasks, where the receiver is then."""
        network = self.network
        due_s = network.scheduler.now + network.delay() * self.connection.slowness
        self._last_s = max(self._last_s, due_s)
        self._sent.append((self._last_s, arrive))
        if self._timer is None and not self._held:
            self._set_timer(self._last_s)

    def hold(self) -> None:
        """Let nothing arrive until `release`; each of several holds has to be released."""
        if not self._held:
            self.held_since_s = self.network.scheduler.now
        self._held += 1

    def release(self) -> None:
        """End one hold."""
        self._held -= 1
        if not self._held and self._sent and self._timer is None:
            # It is sent again, at some time after it can arrive.
            self._set_timer(self.network.scheduler.now + self.network.repetition())

    def hasten(self) -> None:
        """The connection is as fast as it was: what is under way takes no longer than what is sent from now on."""
        network = self.network
        latest_s = network.scheduler.now + network.delay() * self.connection.slowness
        self._sent = deque((min(due_s, latest_s), arrive) for due_s, arrive in self._sent)
        self._last_s = min(self._last_s, latest_s)
        if self._timer is not None and self._sent:
            network.scheduler.call_off(self._timer)
            self._set_timer(self._sent[0][0])

    def lose(self) -> None:
        """Whatever is under way is lost."""
        self._sent.clear()

    def _set_timer(self, due_s: float) -> None:
        scheduler = self.network.scheduler
        self._timer = scheduler.call_at(due_s - scheduler.now, self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        sent, now = self._sent, self.network.scheduler.now
        while sent and not self._held:
            if sent[0][0] > now + 1e-9:
                self._set_timer(sent[0][0])
                return
            _, arrive = sent.popleft()
            if self.receiver.is_gone:
                sent.clear()
                self.connection.refuse(self.sender)
            else:
                arrive()


class End:
    """One side of a connection.

    Attributes:
        process: whose it is.
        handler: is told of its end.
        is_gone: whether this side has it no more: it was closed, or is lost.
        silence_s: after so long without a sign of the other side it is lost; None: it waits for ever.
        needs_process: whether signs come from the other side's process; else from its host, as of TCP.
    """

    __slots__ = ("connection", "handler", "is_gone", "needs_process", "out", "peer", "process", "silence_s")

    def __init__(self, connection: Connection, process: Process) -> None:
        self.connection = connection
        self.process = process
        self.handler: Handler | None = None
        self.is_gone = False
        self.silence_s: float | None = None
        self.needs_process = False
        self.out: Pipe
        self.peer: End

    def close(self) -> None:
        """This side has it no more, and the other one learns that behind all that was sent."""
        if not self.is_gone:
            peer = self.peer
            self.out.send(lambda: peer.handler.closed() if peer.handler is not None else None)
            self.leave()

    def reset(self) -> None:
        """This side has it no more, and what it sent may be lost."""
        if not self.is_gone:
            peer = self.peer
            self.out.lose()
            self.out.send(lambda: peer.lose(Loss.RESET))
            self.leave()

    def lose(self, loss: Loss) -> None:
        """This side learns that it is lost."""
        if not self.is_gone:
            self.leave()
            if self.handler is not None:
                self.handler.lost(loss)

    def leave(self) -> None:
        """This side has it no more; nobody is told."""
        self.is_gone = True
        if self.peer.is_gone:
            self.connection.forget()


class Connection:
    """A connection of two processes.

    Attributes:
        kind: `grpc` or `tcp`.
        port: the one that was connected to.
        opener: the end of the process that connected.
        acceptor: the end of the process that listened.
        slowness: what its delays are multiplied by.
    """

    __slots__ = ("acceptor", "kind", "network", "number", "opener", "own_port", "port", "slowness")

    def __init__(
        self,
        network: Network,
        number: int,
        opener: Process,
        acceptor: Process,
        *,
        kind: Kind,
        own_port: int,
        port: int,
    ) -> None:
        self.network = network
        self.number = number
        self.kind = kind
        self.own_port = own_port
        self.port = port
        self.slowness = 1.0
        self.opener, self.acceptor = End(self, opener), End(self, acceptor)
        self.opener.peer, self.acceptor.peer = self.acceptor, self.opener
        self.opener.out = Pipe(network, self, self.opener, self.acceptor)
        self.acceptor.out = Pipe(network, self, self.acceptor, self.opener)

    def __str__(self) -> str:
        return f"{self.kind} {self.opener.process} -> {self.acceptor.process}:{self.port}"

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends, that of the opener first."""
        return self.opener, self.acceptor

    def forget(self) -> None:
        """Both sides have it no more."""
        self.opener.out.lose()
        self.acceptor.out.lose()
        self.network.connections.pop(self.number, None)

    def refuse(self, sender: End) -> None:
        """Bytes of `sender` came to a side that has it no more: it is told, behind all that it was sent."""
        if not sender.is_gone:
            sender.peer.out.send(lambda: sender.lose(Loss.RESET))

    def watch(self) -> None:
        """Signs may stay out from now on: each side looks, after its time, whether there is one again."""
        for end in self.ends:
            if end.silence_s is not None and not end.is_gone:
                self._watch(end, end.silence_s)

    def _watch(self, end: End, silence_s: float) -> None:
        scheduler = self.network.scheduler
        since_s = scheduler.now

        def look() -> None:
            if end.is_gone:
                return
            if end.process.is_stopped:
                self._watch(end, silence_s)
            elif self._is_silent(end, since_s):
                reachable = end.peer.is_gone and not (end.out.is_held or end.peer.out.is_held)
                end.lose(Loss.RESET if reachable else Loss.TIMEOUT)

        scheduler.call_at(silence_s * self.network.chance.uniform(0.5, 1.0), look)

    def _is_silent(self, end: End, since_s: float) -> bool:
        """Whether no sign of the other side can have come to `end` since then."""
        ways = (end.out, end.peer.out)
        return (
            end.peer.is_gone
            or (end.needs_process and end.peer.process.is_stopped)
            or any(way.is_held and way.held_since_s <= since_s for way in ways)
        )
