"""Messages between hosts: ports that serve what comes in its order, and the way from one kind of host to another.

A port is busy with a message for as long as its bytes take. Messages wait in the order in which they came, as behind
a token bucket; those of several senders to one host share its port, so that P of them take P times as long. Shares
of a packet each, as TCP makes them, end at the same time as the last of these: what waits for all of them cannot
tell the two apart (docs/adr/0037).

Hosts that are alike, and send and receive alike, are one `Host` with a count: a message stands for one between each
of them and each of the others, which leave together and have all come when the last one has.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from taihu.simulation.events import EventQueue, WorkQueue
from taihu.simulation.machines import Machines, Network

__all__ = ["Fabric", "Host", "Path"]

_OF_THEIR_OWN: Final = Machines()


class Host:
    """Hosts that are alike: what one of them sends, receives and works.

    Attributes:
        count: how many they are.
        supernode: where they all are; None if they are spread.
        sent_bytes, received_bytes: of each, beyond its own machine.
        memory: adds and updates, one after another.
    """

    def __init__(self, count: int, *, full_duplex: bool, supernode: int | None = None) -> None:
        self.count = count
        self.supernode = supernode
        self.out = WorkQueue()
        self.into = WorkQueue() if full_duplex else self.out
        self.memory = WorkQueue()
        self.sent_bytes = 0.0
        self.received_bytes = 0.0


class Path:
    """The way of messages from the hosts of one kind to those of another.

    `copies` are how many each sender sends of a message, and how many come to each receiver.
    """

    def __init__(self, fabric: Fabric, source: Host, target: Host, copies: tuple[int, int], alpha_s: float) -> None:
        network = fabric.network
        self._queue = fabric.queue
        self._fabric = fabric
        self._source, self._target = source, target
        self._copies_out, self._copies_in = copies
        self._alpha_s = alpha_s
        self._is_even = network.is_even
        self._message_s = network.message_seconds
        self._per_byte = 1.0 / network.bytes_per_second
        self._uplinks = fabric.uplinks(source, target, source.count * copies[0])
        # Both ends of all messages that this one stands for.
        self._copies_of_all = source.count * copies[0]
        self._last_end = 0.0

    def send(
        self, size_bytes: float, deliver: Callable[..., None], *args: Any, urgent: bool = False
    ) -> tuple[float, float]:
        """Send a message, on whose arrival `deliver(*args)` is called; returns when it begins to leave, and has left.

        An urgent one overtakes all others and is so short that ports are not busy with it.
        """
        now, source = self._queue.now, self._source
        if not self._copies_out:
            self._queue.at(now, deliver, *args)
            return now, now
        source.sent_bytes += size_bytes * self._copies_out
        self._target.received_bytes += size_bytes * self._copies_in
        each_s = size_bytes * self._per_byte + self._message_s
        if urgent:
            self._queue.at(now + each_s + self._alpha(), deliver, *args)
            return now, now
        seconds = each_s * self._copies_out
        end = source.out.book(now, seconds)
        start = end - seconds
        end = max(end, self._fabric.worked(now, size_bytes * self._copies_of_all))
        if start > now:
            self._queue.at(start, self._enter, end, size_bytes, deliver, args)
        else:
            self._enter(end, size_bytes, deliver, args)
        return start, end

    def _enter(self, left: float, size_bytes: float, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        """The message begins to leave, and has `left` then: what is behind the sender's port begins its work."""
        alpha_s = self._alpha()
        start, end = self._queue.now + alpha_s, left + alpha_s
        for port, copies, per_byte in self._uplinks:
            end = max(end, port.book(start, copies * size_bytes * per_byte))
        each_s = size_bytes * self._per_byte + self._message_s
        end = max(end, self._target.into.book(start, self._copies_in * each_s), self._last_end)
        end = max(end, self._fabric.worked(start, size_bytes * self._copies_of_all))
        # One connection keeps the order of its messages.
        self._last_end = end
        self._queue.at(end, deliver, *args)

    def _alpha(self) -> float:
        return self._alpha_s if self._is_even else self._fabric.uneven(self._alpha_s)


class Fabric:
    """All links of a network, and what is random in it, by `seed`.

    Where the hosts of `machines` share processors, both ends of every message are work for these, which they do in
    the order in which it comes, all of them at once.
    """

    def __init__(self, queue: EventQueue, network: Network, seed: int, machines: Machines = _OF_THEIR_OWN) -> None:
        self.queue = queue
        self._cores = WorkQueue()
        self._core_seconds = 0.0
        if machines.shared_cores:
            self._core_seconds = 1.0 / (machines.shared_cores * machines.core_bytes_per_second)
        self.network = network
        self._random = Random(f"network {seed}")  # noqa: S311 - no secret
        self._up: dict[int, WorkQueue] = {}
        self._down: dict[int, WorkQueue] = {}

    def host(self, count: int, supernode: int | None = None) -> Host:
        """Make `count` hosts of one kind."""
        return Host(count, full_duplex=self.network.full_duplex, supernode=supernode)

    def to_all(self, source: Host, target: Host) -> Path:
        """The way from each host of one kind to each of another, or of its own but itself."""
        own = source is target
        copies = (target.count - own, source.count - own)
        return Path(self, source, target, copies, self._alpha(source, target))

    def to_neighbour(self, source: Host, target: Host, hosts: int) -> Path:
        """The way from each host to one other, the next on a ring of so many `hosts`."""
        alpha_s = self._alpha(source, target)
        if source.supernode is None and self.network.supernode:
            # Every value goes all around the ring: it enters each supernode once in so many hops.
            crossings = -(-hosts // self.network.supernode)
            alpha_s += self.network.supernode_alpha_seconds * (crossings / hosts if crossings > 1 else 0.0)
        return Path(self, source, target, (1, 1), alpha_s)

    def uplinks(self, source: Host, target: Host, copies: int) -> list[tuple[WorkQueue, int, float]]:
        """The links between supernodes on a way, the copies of a message that each carries, and seconds per byte."""
        first, last = source.supernode, target.supernode
        if first is None or last is None or first == last:
            return []
        network = self.network
        per_byte = network.oversubscription / (network.supernode * network.bytes_per_second)
        up, down = (links.setdefault(at, WorkQueue()) for links, at in ((self._up, first), (self._down, last)))
        return [(up, copies, per_byte), (down, copies, per_byte)]

    def worked(self, start: float, size_bytes: float) -> float:
        """The instant at which shared processors have sent, or taken in, so many bytes more."""
        if not self._core_seconds:
            return start
        return self._cores.book(start, size_bytes * self._core_seconds)

    def uneven(self, alpha_s: float) -> float:
        """A start-up with jitter, and with the repetition of messages that are lost."""
        network = self.network
        if network.jitter:
            alpha_s *= self._random.lognormvariate(0.0, network.jitter)
        while network.loss_ratio and self._random.random() < network.loss_ratio:
            alpha_s += network.retransmit_seconds
        return alpha_s

    def _alpha(self, source: Host, target: Host) -> float:
        network = self.network
        crosses = source.supernode is not None and source.supernode != target.supernode
        return network.alpha_seconds + (network.supernode_alpha_seconds if crosses else 0.0)
