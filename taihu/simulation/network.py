"""Messages between hosts: ports that serve what comes in its order, and the way from one kind of host to another.

A port is busy with a message for as long as its bytes take. Messages wait in the order in which they came, as behind
a token bucket; those of several senders to one host share its port, so that P of them take P times as long. Shares
of a packet each, as TCP makes them, end at the same time as the last of these: what waits for all of them cannot
tell the two apart (docs/adr/0034).

Hosts that are alike, and send and receive alike, are one `Host` with a count: a message stands for one between each
of them and each of the others, which leave together and have all come when the last one has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.system.chance import Random
from taihu.core.wire.frames.limits import MOST_UNSENT_BYTES
from taihu.simulation.events import EventQueue, WorkQueue
from taihu.simulation.machines import Machines, Network
from taihu.simulation.one_machine import Connection, Cores, Port, SharedPorts

_OF_THEIR_OWN: Final = Machines()


class Thread:
    """Does one piece of work after another: on a processor of the host's own, or on one of `cores` that all share."""

    def __init__(self, queue: EventQueue, cores: Cores | None) -> None:
        self._queue = queue
        self._cores = cores
        self._own = WorkQueue()
        self._waiting: deque[tuple[float, bool, Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_working = False

    def do(self, seconds: float, call: Callable[..., None], *args: Any, waits: bool = False) -> None:
        """Do `seconds` of work behind all that is to be done; `call(*args)` follows.

        Seconds that were measured where processors are shared hold what it `waits` for them: others do not add to it.
        """
        if self._cores is None:
            self._queue.at(self._own.book(self._queue.now, seconds), call, *args)
            return
        self._waiting.append((seconds, waits, call, args))
        if not self._is_working:
            self._go_on(self._cores)

    def _go_on(self, cores: Cores) -> None:
        self._is_working = bool(self._waiting)
        if self._is_working:
            seconds, waits, call, args = self._waiting.popleft()
            if waits:
                self._queue.at(self._queue.now + seconds, self._done, cores, call, args)
            else:
                cores.work(seconds, self._done, cores, call, args)

    def _done(self, cores: Cores, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        call(*args)
        self._go_on(cores)


class Host:
    """Hosts that are alike: what one of them sends, receives and works.

    Attributes:
        count: how many they are.
        supernode: where they all are; None if they are spread.
        sent_bytes, received_bytes: of each, beyond its own machine.
        memory: adds and updates, one after another.
        ports: out and in, where connections share them.
    """

    def __init__(
        self,
        count: int,
        *,
        queue: EventQueue,
        network: Network,
        supernode: int | None = None,
        cores: Cores | None = None,
    ) -> None:
        self.count = count
        self.supernode = supernode
        self.out = WorkQueue()
        self.into = WorkQueue() if network.full_duplex else self.out
        out = Port(network.bytes_per_second)
        self.ports = (out, Port(network.bytes_per_second) if network.full_duplex else out)
        self._queue = queue
        self._cores = cores
        self.memory = self.thread()
        self.interpreter = self.thread()
        self.sent_bytes = 0.0
        self.received_bytes = 0.0

    def thread(self) -> Thread:
        """Make one more thread."""
        return Thread(self._queue, self._cores)

    def compute(self, seconds: float, call: Callable[[], None]) -> None:
        """Compute, all threads at once; `call()` follows. What is work of shared processors may take longer."""
        share = self._cores.machines.core_compute_share if self._cores is not None else 0.0
        if self._cores is None or not share:
            self._queue.at(self._queue.now + seconds, call)
            return
        missing = 2

        def done() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                call()

        self._queue.at(self._queue.now + seconds, done)
        self._cores.work(seconds * share, done)


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
        self._connection = fabric.connection(source, target, alpha_s)
        self._is_even = network.is_even
        self._message_s = network.message_seconds
        self._per_byte = 1.0 / network.bytes_per_second
        each = source.count * copies[0]
        self._uplinks = [(up, each, 1.0 / port.bytes_per_second) for up, port in fabric.uplinks(source, target)]
        self._last_end = 0.0
        # All that was sent before an instant has left then; nothing urgent of that instant waits for what else is.
        self._last_left = self._earlier_left = self._instant = 0.0

    def send(
        self,
        size_bytes: float,
        deliver: Callable[..., None],
        *args: Any,
        urgent: bool = False,
        on_left: Callable[[float, float], None] | None = None,
    ) -> None:
        """Send a message, on whose arrival `deliver(*args)` is called; `on_left` gets when it began, and had left.

        An urgent one overtakes all that the sender has not handed to its kernel, and is so short that ports are not
        busy with it.
        """
        now, source = self._queue.now, self._source
        if not self._copies_out:
            self._queue.at(now, deliver, *args)
            if on_left is not None:
                on_left(now, now)
            return
        source.sent_bytes += size_bytes * self._copies_out
        self._target.received_bytes += size_bytes * self._copies_in
        if self._connection is not None:
            self._connection.send(size_bytes, deliver, args, on_left, urgent=urgent)
            return
        each_s = size_bytes * self._per_byte + self._message_s
        if urgent:
            handed_s = MOST_UNSENT_BYTES * self._per_byte * self._copies_out
            left = self._earlier_left if now == self._instant else self._last_left
            wait_s = min(max(0.0, left - now), handed_s)
            self._queue.at(now + wait_s + each_s + self._alpha(), deliver, *args)
            return
        seconds = each_s * self._copies_out
        end = source.out.book(now, seconds)
        if now > self._instant:
            self._instant, self._earlier_left = now, self._last_left
        start, self._last_left = end - seconds, end
        if on_left is not None:
            on_left(start, end)
        if start > now:
            self._queue.at(start, self._enter, end, size_bytes, deliver, args)
        else:
            self._enter(end, size_bytes, deliver, args)

    def _enter(self, left: float, size_bytes: float, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        """The message begins to leave, and has `left` then: what is behind the sender's port begins its work."""
        alpha_s = self._alpha()
        start, end = self._queue.now + alpha_s, left + alpha_s
        for port, copies, per_byte in self._uplinks:
            end = max(end, port.book(start, copies * size_bytes * per_byte))
        each_s = size_bytes * self._per_byte + self._message_s
        end = max(end, self._target.into.book(start, self._copies_in * each_s), self._last_end)
        # One connection keeps the order of its messages.
        self._last_end = end
        self._queue.at(end, deliver, *args)

    def _alpha(self) -> float:
        return self._alpha_s if self._is_even else self._fabric.uneven(self._alpha_s)


class Fabric:
    """All links of a network, and what is random in it, by `seed`.

    Where the hosts of `machines` share processors each is simulated for itself: see `one_machine`.
    """

    def __init__(self, queue: EventQueue, network: Network, seed: int, machines: Machines = _OF_THEIR_OWN) -> None:
        self.queue = queue
        self._cores = Cores(queue, machines) if machines.shared_cores else None
        self._ports = SharedPorts(queue)
        self.network = network
        self._random = Random(f"network {seed}")
        self._random_arrays = np.random.default_rng(Random(f"arrays {seed}").getrandbits(64))
        self._up: dict[int, tuple[WorkQueue, Port]] = {}
        self._down: dict[int, tuple[WorkQueue, Port]] = {}

    def host(self, count: int, supernode: int | None = None) -> Host:
        """Make `count` hosts of one kind."""
        return Host(count, queue=self.queue, network=self.network, supernode=supernode, cores=self._cores)

    def to_all(self, source: Host, target: Host) -> Path:
        """The way from each host of one kind to each of another, or of its own but itself."""
        own = source is target
        copies = (target.count - own, source.count - own)
        return Path(self, source, target, copies, self._alpha(source, target))

    def to_neighbour(self, source: Host, target: Host, hosts: int) -> Path:
        """The way from each host to one other, the next on a ring of so many `hosts`."""
        return Path(self, source, target, (1, 1), self.alpha_to_neighbour(source, target, hosts))

    def alpha_to_neighbour(self, source: Host, target: Host, hosts: int) -> float:
        """The start-up of a message to the next host on a ring of so many `hosts`."""
        alpha_s = self._alpha(source, target)
        if source.supernode is None and self.network.supernode:
            # Every value goes all around the ring: it enters each supernode once in so many hops.
            crossings = -(-hosts // self.network.supernode)
            alpha_s += self.network.supernode_alpha_seconds * (crossings / hosts if crossings > 1 else 0.0)
        return alpha_s

    def uplinks(self, source: Host, target: Host) -> list[tuple[WorkQueue, Port]]:
        """The links between supernodes on a way, as queues and as ports that connections share."""
        first, last = source.supernode, target.supernode
        if first is None or last is None or first == last:
            return []
        network = self.network
        rate = network.supernode * network.bytes_per_second / network.oversubscription
        ends = ((self._up, first), (self._down, last))
        return [links.setdefault(at, (WorkQueue(), Port(rate))) for links, at in ends]

    @property
    def shares_cores(self) -> bool:
        """Whether hosts share processors."""
        return self._cores is not None

    def connection(self, source: Host, target: Host, alpha_s: float) -> Connection | None:
        """The connection between two hosts that share processors; None where they share none."""
        if self._cores is None:
            return None
        network = self.network
        return Connection(
            self.queue,
            self._cores,
            self._ports,
            (source.ports[0], target.ports[1], *(port for _, port in self.uplinks(source, target))),
            lambda: alpha_s if network.is_even else self.uneven(alpha_s),
            network.message_seconds * network.bytes_per_second,
            (source.interpreter, target.interpreter),
        )

    def uneven(self, alpha_s: float) -> float:
        """A start-up with jitter, and with the repetition of messages that are lost."""
        network = self.network
        if network.jitter:
            alpha_s *= self._random.lognormvariate(0.0, network.jitter)
        while network.loss_ratio and self._random.random() < network.loss_ratio:
            alpha_s += network.retransmit_seconds
        return alpha_s

    def uneven_array(self, alpha_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Start-ups as `uneven` makes them, by random numbers of their own."""
        network = self.network
        if network.jitter:
            alpha_s = alpha_s * self._random_arrays.lognormal(0.0, network.jitter, len(alpha_s))
        if network.loss_ratio:
            attempts = self._random_arrays.geometric(1.0 - network.loss_ratio, len(alpha_s))
            alpha_s = alpha_s + network.retransmit_seconds * (attempts - 1)
        return alpha_s

    def _alpha(self, source: Host, target: Host) -> float:
        network = self.network
        crosses = source.supernode is not None and source.supernode != target.supernode
        return network.alpha_seconds + (network.supernode_alpha_seconds if crosses else 0.0)
