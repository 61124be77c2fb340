"""Hosts that are namespaces of one machine: processors that all share, and ports that connections share by packets.

Here every host is simulated for itself. A piece of work is one thread's; while there are more pieces than processors
all go on evenly, as a scheduler lets them. A port's rate is divided evenly among the connections that it holds up
(max-min fairness), as TCP divides it in the long run. A message is work for both ends: what its bytes take passes
while they do, and what each message takes comes before them at the sender, and behind them at the receiver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

from taihu.core.wire.frames.limits import MOST_UNSENT_BYTES
from taihu.simulation.events import EventQueue
from taihu.simulation.machines import Machines

# What rounding leaves of a message.
_NOTHING_BYTES: Final = 1e-3

Call = Callable[..., None]


class Cores:
    """The processors of `machines`, which all hosts share: as much work of each piece under way is done at a time."""

    def __init__(self, queue: EventQueue, machines: Machines) -> None:
        self.machines = machines
        self._queue = queue
        # Work that was done of each piece since the beginning, until `_since`.
        self._done = self._since = 0.0
        self._under_way: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._count = 0
        self._planned = 0

    def work(self, seconds: float, call: Call, *args: Any) -> None:
        """Begin a piece of work that takes one processor `seconds`; `call(*args)` follows."""
        self._advance()
        self._count += 1
        heappush(self._under_way, (self._done + seconds, self._count, call, args))
        self._plan()

    def _advance(self) -> None:
        now = self._queue.now
        self._done += (now - self._since) * self._pace()
        self._since = now

    def _pace(self) -> float:
        pieces = len(self._under_way)
        return 1.0 if pieces <= self.machines.shared_cores else self.machines.shared_cores / pieces

    def _plan(self) -> None:
        self._planned += 1
        if self._under_way:
            rest = max(0.0, self._under_way[0][0] - self._done)
            self._queue.at(self._queue.now + rest / self._pace(), self._end_first, self._planned)

    def _end_first(self, planned: int) -> None:
        if planned != self._planned:
            return
        self._advance()
        end, _, call, args = heappop(self._under_way)
        self._done = max(self._done, end)
        self._plan()
        call(*args)


class Port:
    """One direction of a host's port, both where it has but one, or what leads out of some hosts."""

    __slots__ = ("bytes_per_second", "flows", "left", "open")

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.flows: list[_Flow] = []
        # While rates are found: what is left of the port's, and the flows without one.
        self.left = 0.0
        self.open = 0


class _Flow:
    """The bytes of a message that are on their way through some ports."""

    __slots__ = ("call", "ports", "rate", "rest")

    def __init__(self, rest: float, ports: Sequence[Port], call: Callable[[], None]) -> None:
        self.rest = rest
        self.ports = ports
        self.call = call
        self.rate = 0.0


class SharedPorts:
    """All messages under way, through ports of all hosts."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._flows: list[_Flow] = []
        self._since = 0.0
        self._planned = 0

    def begin(self, size_bytes: float, ports: Sequence[Port], call: Callable[[], None]) -> Callable[[], float]:
        """Send so many bytes through `ports`; `call()` follows. Returns what tells how many are still to leave."""
        self._advance()
        flow = _Flow(size_bytes, ports, call)
        self._flows.append(flow)
        for port in ports:
            port.flows.append(flow)
        self._plan()

        def rest() -> float:
            self._advance()
            return flow.rest

        return rest

    def _advance(self) -> None:
        passed = self._queue.now - self._since
        if passed:
            for flow in self._flows:
                flow.rest -= flow.rate * passed
            self._since = self._queue.now

    def _plan(self) -> None:
        self._planned += 1
        if not self._flows:
            return
        self._share()
        first = min(max(0.0, flow.rest) / flow.rate for flow in self._flows)
        self._queue.at(self._queue.now + first, self._end_first, self._planned)

    def _share(self) -> None:
        """Give every flow its rate: that of the port which has the least for each of those that it holds up."""
        ports = list(dict.fromkeys(port for flow in self._flows for port in flow.ports))
        for port in ports:
            port.left, port.open = port.bytes_per_second, len(port.flows)
        for flow in self._flows:
            flow.rate = 0.0
        while ports:
            narrow = min(ports, key=lambda port: port.left / port.open)
            rate = narrow.left / narrow.open
            for flow in narrow.flows:
                if not flow.rate:
                    flow.rate = rate
                    for port in flow.ports:
                        port.left -= rate
                        port.open -= 1
            ports = [port for port in ports if port.open]

    def _end_first(self, planned: int) -> None:
        if planned != self._planned:
            return
        self._advance()
        least = min(flow.rest / flow.rate for flow in self._flows)
        ended = [flow for flow in self._flows if flow.rest / flow.rate <= least or flow.rest <= _NOTHING_BYTES]
        for flow in ended:
            self._flows.remove(flow)
            for port in flow.ports:
                port.flows.remove(flow)
        self._plan()
        for flow in ended:
            flow.call()


@dataclass(frozen=True)
class _Message:
    size_bytes: float
    deliver: Call
    args: tuple[Any, ...]
    on_left: Callable[[float, float], None] | None


class Connection:
    """The messages of one host to another, which leave one after another.

    A thread sends them: it looks which is the first one when it has woken, which takes what each message takes. An
    urgent one goes before all that has not been handed to the kernel, which takes `MOST_UNSENT_BYTES` ahead.

    Args:
        queue: the clock.
        cores: of both ends.
        shared: all ports.
        ports: on the way.
        alpha: tells seconds from a message's departure to its arrival.
        message_bytes: that the ports could carry in the time that each message takes, however short.
    """

    def __init__(  # noqa: PLR0917 - both ends, and what is between them
        self,
        queue: EventQueue,
        cores: Cores,
        shared: SharedPorts,
        ports: Sequence[Port],
        alpha: Callable[[], float],
        message_bytes: float,
        interpreters: tuple[Any, Any],
    ) -> None:
        self._queue, self._cores, self._shared, self._ports = queue, cores, shared, tuple(dict.fromkeys(ports))
        self._sender, self._receiver = interpreters
        self._alpha = alpha
        self._message_bytes = message_bytes
        self._byte_s = 1.0 / cores.machines.core_bytes_per_second
        self._message_s = cores.machines.core_message_seconds
        self._waiting: deque[_Message] = deque()
        self._under_way: _Message | None = None
        self._is_preparing = self._is_prepared = False
        self._rest: Callable[[], float] = lambda: 0.0
        self._missing = 0
        self._begun = self._last_end = 0.0

    def send(
        self,
        size_bytes: float,
        deliver: Call,
        args: tuple[Any, ...],
        on_left: Callable[[float, float], None] | None,
        *,
        urgent: bool,
    ) -> None:
        """Send a message, on whose arrival `deliver(*args)` is called; `on_left` gets when it began, and had left."""
        message = _Message(size_bytes, deliver, args, on_left)
        self._waiting.insert(self._in_kernel() if urgent else len(self._waiting), message)
        self._prepare()

    def _in_kernel(self) -> int:
        """The number of waiting messages that were handed over."""
        if self._under_way is None:
            return 0  # the thread has not looked yet
        ahead, handed = self._rest(), 0
        while handed < len(self._waiting) and ahead < MOST_UNSENT_BYTES:
            ahead += self._waiting[handed].size_bytes
            handed += 1
        return handed

    def _prepare(self) -> None:
        """The thread wakes for the next message, also while the kernel still sends the one before."""
        if self._waiting and not self._is_preparing and not self._is_prepared:
            self._is_preparing = True
            self._sender.do(self._message_s, self._prepared)

    def _prepared(self) -> None:
        self._is_preparing, self._is_prepared = False, True
        self._leave_if_free()

    def _leave_if_free(self) -> None:
        if not self._is_prepared or self._under_way is not None:
            return
        self._is_prepared = False
        message = self._under_way = self._waiting.popleft()
        self._begun, self._missing = self._queue.now, 3
        seconds = message.size_bytes * self._byte_s
        for _ in ("sent", "taken in"):
            self._cores.work(seconds, self._passed)
        self._rest = self._shared.begin(message.size_bytes + self._message_bytes, self._ports, self._passed)
        self._prepare()

    def _passed(self) -> None:
        """The link, or the processor at one end, is through with the message's bytes."""
        self._missing -= 1
        message = self._under_way
        if self._missing or message is None:
            return
        if message.on_left is not None:
            message.on_left(self._begun, self._queue.now)
        self._last_end = max(self._queue.now + self._alpha(), self._last_end)
        self._queue.at(self._last_end, self._receiver.do, self._message_s, message.deliver, *message.args)
        self._under_way = None
        self._leave_if_free()
