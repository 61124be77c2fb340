"""The network of a run: who listens, who is connected, and what goes wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from taihu.explore.network.attempts import Attempt
from taihu.explore.network.connections import Connection, End, Kind, Loss
from taihu.explore.network.streams import Stream
from taihu.explore.scheduler import Scheduler
from taihu.explore.tasks import Process

__all__ = ["Direction", "Listener", "Network", "Which"]

Which = Callable[[Process, Process, Connection], bool]
"""Whether a fault is of this connection, which the first process opened to the second."""
Direction = Literal["both", "a to b", "b to a"]

_FIRST_PORT: Final = 20_001
_FIRST_OWN_PORT: Final = 40_001
# The share of a process's gRPC connections on which something has come that it has not read, at any time.
_UNREAD: Final = 0.5
_EVERY_HOST: Final = ("", "0.0.0.0", "::")  # noqa: S104


class Listener(Protocol):
    """The one that takes connections in."""

    kind: Kind
    process: Process

    def accept(self, end: End) -> bool:
        """Take a connection in; False where there is no room. Called between tasks."""
        ...


@dataclass(frozen=True)
class _Partition:
    """Nothing goes from the hosts of one side to those of the other."""

    side_a: frozenset[str]
    side_b: frozenset[str]
    direction: Direction

    def blocks(self, sender: Process, receiver: Process) -> bool:
        """Whether what `sender` sends does not come to `receiver`."""
        forth = sender.host in self.side_a and receiver.host in self.side_b
        back = sender.host in self.side_b and receiver.host in self.side_a
        return (forth and self.direction != "b to a") or (back and self.direction != "a to b")


class Network:
    """All connections of a run; one for each run, which its scheduler provides.

    Args:
        scheduler: of the run.
        latency_s: the shortest and the longest usual delay of a message.
        late: the share of messages that are late beyond that.
        late_s: the most that they are late by.
        interrupted: the share of calls on sockets that end before all is done, as by a signal.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        latency_s: tuple[float, float] = (0.0001, 0.002),
        late: float = 0.02,
        late_s: float = 0.5,
        interrupted: float = 0.05,
    ) -> None:
        self.scheduler = scheduler
        self.chance = scheduler.random("network")
        self.connections: dict[int, Connection] = {}
        self.interrupted = interrupted
        self._draw = self.chance.random
        self._least_s, self._span_s = latency_s[0], latency_s[1] - latency_s[0]
        self._late, self._late_s = late, late_s
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._partitions: list[_Partition] = []
        self._slow: list[tuple[Which, float]] = []
        self._dead_hosts: set[Process] = set()
        # Where nobody answers, not even to refuse.
        self._silent: set[tuple[str, int]] = set()
        self._numbers = itertools.count()
        self._ports = itertools.count(_FIRST_PORT)
        self._own_ports = itertools.count(_FIRST_OWN_PORT)

    # -- what connections ask

    def delay(self) -> float:
        """Seconds that a message is under way."""
        draw = self._draw
        delay_s = self._least_s + self._span_s * draw()
        return delay_s + self._late_s * draw() if draw() < self._late else delay_s

    def repetition(self) -> float:
        """Seconds until what was held up is sent again."""
        return self._draw()

    def passes(self, sender: Process, receiver: Process) -> bool:
        """Whether anything comes from one process to another."""
        if self._dead_hosts and not self._dead_hosts.isdisjoint((sender, receiver)):
            return False
        return not any(each.blocks(sender, receiver) for each in self._partitions)

    # -- listening and connecting

    def listen(self, host: str, port: int, listener: Listener) -> int:
        """Take connections in; port 0 takes a free one. Returns the port.

        Raises:
            OSError: somebody listens there.
        """
        port = port or self.free_port(host)
        if self._listening(host, port):
            raise OSError(98, "Address already in use")
        self._listeners[_host(host), port] = listener
        self._silent.discard((_host(host), port))
        return port

    def free_port(self, host: str) -> int:
        """A port on which nobody listens, and that was given to nobody before."""
        return next(port for port in self._ports if self._listening(host, port) is None)

    def listening(self, host: str, port: int) -> Listener | None:
        """The one that listens there."""
        return self._listening(host, port)

    def is_silent(self, host: str, port: int) -> bool:
        """Whether nobody answers there, not even to refuse: the host is gone."""
        return not {(_host(host), port), ("", port)}.isdisjoint(self._silent)

    def stop_listening(self, listener: Listener) -> None:
        """The ports of `listener` are free again."""
        self._listeners = {where: each for where, each in self._listeners.items() if each is not listener}

    def _listening(self, host: str, port: int) -> Listener | None:
        """The one that listens there; those of processes that were killed do not."""
        host = _host(host)
        for where in ((host, port), ("", port)):
            listener = self._listeners.get(where)
            if listener is not None:
                if not listener.process.is_dead:
                    return listener
                del self._listeners[where]
        if not host:
            for other, others_port in list(self._listeners):
                if others_port == port:
                    return self._listening(other, port)
        return None

    def connect(
        self, kind: Kind, process: Process, host: str, port: int, done: Callable[[End | None, str], None]
    ) -> Attempt:
        """Connect `process` to whoever listens there; `done` gets its end, or None and why, between tasks."""
        attempt = Attempt(self, process, kind=kind, host=host, port=port, done=done)
        self.scheduler.call_at(self.delay(), attempt.arrive)
        return attempt

    def connected(self, kind: Kind, opener: Process, listener: Listener, port: int) -> Connection | None:
        """A connection that `listener` takes in; None where it has no room."""
        number = next(self._numbers)
        connection = Connection(
            self, number, opener, listener.process, kind=kind, own_port=next(self._own_ports), port=port
        )
        if not listener.accept(connection.acceptor):
            return None
        self.connections[number] = connection
        if self._slow:
            connection.slowness = self._slowness_of(connection)
        return connection

    # -- faults

    def cut(self, which: Which) -> None:
        """Connections break: both sides are told, and what is under way is lost."""
        for connection in self._chosen(which):
            for end in connection.ends:
                end.out.lose()
                end.lose(Loss.RESET)

    def half_open(self, which: Which) -> None:
        """Connections break, and one side is told; the other one finds out when it sends, or by its keepalive."""
        for connection in self._chosen(which):
            end = self.chance.choice(connection.ends)
            for each in connection.ends:
                each.out.lose()
            end.lose(Loss.RESET)
            connection.watch()

    def stall(self, which: Which, seconds: float) -> None:
        """Nothing arrives on connections for so long."""
        held = [end.out for connection in self._chosen(which) for end in connection.ends]
        for pipe in held:
            pipe.hold()
        for pipe in held:
            pipe.connection.watch()

        def go_on() -> None:
            for pipe in held:
                pipe.release()

        self.scheduler.call_at(seconds, go_on)

    def slow(self, which: Which, factor: float, for_s: float | None = None) -> None:
        """Messages on connections, also those to come, take so many times as long, for so long or for ever."""
        slowness = (which, factor)
        self._slow.append(slowness)
        self._set_slowness()
        if for_s is not None:

            def end() -> None:
                self._slow.remove(slowness)
                self._set_slowness()
                for connection in self._chosen(which):
                    for each in connection.ends:
                        each.out.hasten()

            self.scheduler.call_at(for_s, end)

    def _set_slowness(self) -> None:
        for connection in self.connections.values():
            connection.slowness = self._slowness_of(connection)

    def _slowness_of(self, connection: Connection) -> float:
        ends = connection.opener.process, connection.acceptor.process
        return math.prod(factor for which, factor in self._slow if which(*ends, connection))

    def partition(
        self, side_a: Collection[str], side_b: Collection[str], direction: Direction, heals_after_s: float | None
    ) -> None:
        """Nothing goes between members of one side and those of the other, also of connections to come."""
        partition = _Partition(frozenset(side_a), frozenset(side_b), direction)
        self._partitions.append(partition)
        held = [
            end.out
            for connection in self.connections.values()
            for end in connection.ends
            if partition.blocks(end.process, end.peer.process)
        ]
        for pipe in held:
            pipe.hold()
        for pipe in held:
            pipe.connection.watch()

        def heal() -> None:
            self._partitions.remove(partition)
            for pipe in held:
                pipe.release()

        if heals_after_s is not None:
            self.scheduler.call_at(heals_after_s, heal)

    def crash(self, process: Process, *, with_host: bool = False) -> None:
        """The process has ended, in whatever way: its ports are free, and its peers learn of it a moment later.

        Where its host has ended `with_host`, they learn nothing: their keepalive finds out.
        """
        where = [where for where, each in self._listeners.items() if each.process is process]
        for each in where:
            del self._listeners[each]
        if with_host:
            self._dead_hosts.add(process)
            self._silent.update(where)
        for connection in self._of(process):
            for end in connection.ends:
                if end.process is not process or end.is_gone:
                    continue
                if with_host:
                    end.out.hold()
                    end.peer.out.hold()
                    connection.watch()
                elif self._has_unread(end):
                    end.reset()
                else:
                    end.close()

    def _has_unread(self, end: End) -> bool:
        """Whether something has come to this end that its process has not taken: its kernel resets it then."""
        handler = end.handler
        return handler.has_unread if isinstance(handler, Stream) else self._draw() < _UNREAD

    def left_open(self, process: Process) -> list[str]:
        """The peers of the connections that a process has not closed."""
        ends = [end for connection in self._of(process) for end in connection.ends if end.process is process]
        return [str(end.peer.process) for end in ends if not end.is_gone]

    def stopped(self, process: Process) -> None:
        """The process is held, and answers nothing: who asks whether it is alive learns that."""
        for connection in self._of(process):
            connection.watch()

    def _of(self, process: Process) -> list[Connection]:
        return [each for each in self.connections.values() if process in (each.opener.process, each.acceptor.process)]

    def _chosen(self, which: Which) -> list[Connection]:
        return [each for each in self.connections.values() if which(each.opener.process, each.acceptor.process, each)]


def _host(host: str) -> str:
    """The host by which listeners are found: all names of this machine are one."""
    if host in _EVERY_HOST:
        return ""
    return "127.0.0.1" if host in ("localhost", "::1", "127.0.0.1") else host
