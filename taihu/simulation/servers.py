"""The exchange through servers on the virtual clock: the daemons' links and aggregator, and the paths between them.

Servers that are alike are one, as hosts are: it has the shard of the last of them, of which none has a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.planner.partition import Framing, Shard
from taihu.core.trace import Tracer
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.headers import At, Frame, FrameHeader
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Parameters, Summed
from taihu.core.wire.links.inbox import Sink
from taihu.core.wire.links.pipe import Carrier, FrameWay, PipeEvents
from taihu.ps_server.aggregator import Aggregator, Complete
from taihu.simulation.network import Fabric, Host
from taihu.simulation.placement import Alike
from taihu.simulation.sizes import Sizes
from taihu.simulation.worker import SimulatedRoute, SimulatedWorker
from taihu.worker.exchange.servers.answers import ByServers
from taihu.worker.exchange.servers.link import ServerLink
from taihu.worker.memory.arenas import Arenas

_NO_VALUES: Final = np.empty(0, dtype=np.float32)
_NO_ARENAS: Final = Arenas(_NO_VALUES, _NO_VALUES)
_NO_SECTIONS: Final = np.empty(0, dtype=np.uint8)


class _Priced(NamedTuple):
    """Values that have nothing but a size."""

    nbytes: int


class SimulatedServer:
    """One server, or several that are alike: collects frames, adds them up, updates and answers.

    Args:
        at: the servers that it stands for.
        job: of the run.
        plan: the present one.
        workers: kinds of workers; those of one kind push together.
        last_step: that has ended.
        host: where it runs.
        sizes: of messages.
        tracer: gets the entries that a real server's gets.

    Attributes:
        framing: of its shard.
        is_over: whether it takes in nothing any more: its process is gone, or goes on as another object.
    """

    def __init__(  # noqa: PLR0917 - what a server is made of
        self, at: Alike, job: Job, plan: Plan, workers: int, last_step: int, host: Host, sizes: Sizes, tracer: Tracer
    ) -> None:
        self.at = at
        self.host = host
        self.tracer = tracer
        self.is_over = False
        self.framing = Framing(Shard(plan.layout, job.servers, at.last), plan.groups, plan.frame_elements)
        self._aggregator: Aggregator[None] = Aggregator(
            plan=plan.version, workers=workers, frames=self.framing.frames, last_step=last_step
        )
        self._sender = Sender(1)
        self._ways: list[_Way] = []
        self._sizes = sizes

    def join(self, way: _Way, sender: Sender) -> None:
        """Take frames of a worker."""
        self._aggregator.admit(len(self._ways), sender.incarnation)
        self._ways.append(way)

    def push(self, way: _Way, header: FrameHeader) -> None:
        """A worker's frame has come; the last one leads to the sum, the update and all answers."""
        if self.is_over or way.worker.is_over:
            return
        outcome = self._aggregator.offer(header, None)
        if isinstance(outcome, Complete):
            seconds = self._sizes.server_seconds(outcome.frame)
            self.host.memory.do(seconds, self._applied, outcome, seconds)

    def ask(self, way: _Way, header: FrameHeader) -> None:
        """A worker's question has come."""
        if self.is_over or way.worker.is_over:
            return
        size = self._sizes.parameters(self._aggregator.check_asked(header))
        way.down.send(size, way.take, FrameHeader(self._sender, header.address, Parameters(), Encoding.NONE), size)

    def _applied(self, complete: Complete[None], seconds: float) -> None:
        frame, at = complete.frame, complete.at
        self._aggregator.applied(frame)
        now, size = self._ways[0].worker.queue.now, self._sizes.answered(frame)
        self.tracer.add("update", "update", now - seconds, now, step=at.step, group=frame.group)
        answer = FrameHeader(self._sender, at.range(frame), Summed(now), Encoding.NONE)
        for way in self._ways:
            way.down.send(size, way.take_sum, answer, size, urgent=size <= HEADER_BYTES)


class _Way(FrameWay):
    """The way of frames between a worker, or those that are alike, and a server: by their sizes alone."""

    def __init__(self, worker: SimulatedWorker, server: SimulatedServer, fabric: Fabric, sizes: Sizes) -> None:
        self.worker = worker
        self.down = fabric.to_all(server.host, worker.host)
        self._up = fabric.to_all(worker.host, server.host)
        self._server, self._sizes = server, sizes
        self._taking = worker.host.thread()
        self._sink: Sink

    def connect(self, sink: Sink, _: PipeEvents) -> FrameWay:
        """Hand `sink` what comes; nothing breaks here."""
        self._sink = sink
        return self

    def carry(self, carrier: Carrier) -> None:
        """All are as fast."""

    @override
    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        if urgent:
            self._up.send(HEADER_BYTES, self._server.ask, self, header, urgent=True)
            return
        frame = self._server.framing.by_offset[header.address.offset]
        traced = partial(self._trace, "push", header) if self.worker.tracer.enabled else None
        self._up.send(self._sizes.pushed(frame), self._server.push, self, header, on_left=traced)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Nothing is read."""
        callback()

    def take_sum(self, header: FrameHeader, size_bytes: float) -> None:
        """The answer to a frame has come."""
        seconds = self._sizes.taking_seconds(self._server.framing.by_offset[header.address.offset])
        if seconds:
            self._taking.do(seconds, self.take, header, size_bytes)
        else:
            self.take(header, size_bytes)

    def take(self, header: FrameHeader, size_bytes: float) -> None:
        """An answer has come, and its values are where they belong."""
        if self.worker.is_over:
            return
        if isinstance(header.kind, Summed) and self.worker.tracer.enabled:
            self._trace("pull", header, header.kind.completed_s, self.worker.queue.now)
        values: Any = _Priced(round(self._server.host.count * size_bytes) - HEADER_BYTES)
        self._sink.take_frame(Frame(header, values, _NO_SECTIONS))

    def _trace(self, name: str, header: FrameHeader, start: float, stop: float) -> None:
        address, index = header.address, self._server.at.first
        track = f"{name} server {index}"
        self.worker.tracer.add(track, name, start, stop, step=address.at.step, group=address.group, peer=index)


class ServersRoute(SimulatedRoute):
    """One worker's links to all servers."""

    def __init__(
        self,
        worker: SimulatedWorker,
        servers: Sequence[SimulatedServer],
        links: Sequence[ServerLink],
        sizes: Sizes,
    ) -> None:
        self._worker, self._servers, self._links, self._sizes = worker, servers, links, sizes

    @override
    def parts(self, group: int) -> int:
        return sum(len(link.frames(group)) for link in self._links)

    @override
    def begin(self, at: At) -> None:
        for link in self._links:
            link.begin(at)

    @override
    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        """Push to every server; returns the bytes to all that they stand for."""
        sent = 0.0
        for link, server in zip(self._links, self._servers, strict=True):
            link.push(group, loss_scale=loss_scale, skipped=skipped)
            sent += server.host.count * sum(map(self._sizes.pushed, link.frames(group)))
        return round(sent)

    @override
    def apply(self, at: At, loss_scale: float) -> None:
        """Update, as every worker does where the servers only add."""
        self._worker.work(self._sizes.update_seconds(), lambda: self._worker.applied(at))

    @override
    def fetch(self, group: int, step: int) -> None:
        for link in self._links:
            link.ask(group, step)

    def agree(self, told: Callable[[], None]) -> None:
        """Servers are told with the gradients."""
        told()


def join_servers(  # noqa: PLR0917 - who, by what, and what is between them
    workers: Sequence[SimulatedWorker],
    servers: Sequence[SimulatedServer],
    job: Job,
    plan: Plan,
    sizes: Sizes,
    fabric: Fabric,
) -> list[SimulatedRoute]:
    """The route of every worker to all servers."""

    def link(sender: Sender, worker: SimulatedWorker, server: SimulatedServer) -> ServerLink:
        way = _Way(worker, server, fabric, sizes)
        server.join(way, sender)
        return ServerLink(
            job=job,
            plan=plan,
            framing=server.framing,
            index=server.at.first,
            peer=f"server {server.at.first}",
            sender=sender,
            arenas=_NO_ARENAS,
            updates=ByServers(_NO_VALUES),
            events=worker.events,
            now=worker.now,
            tracer=Tracer.off(),
            connect=way.connect,
            server_ahead_s=0.0,
        )

    senders = [Sender(1, kind) for kind in range(len(workers))]
    return [
        ServersRoute(worker, servers, [link(sender, worker, server) for server in servers], sizes)
        for sender, worker in zip(senders, workers, strict=True)
    ]
