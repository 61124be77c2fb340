"""The exchange through servers on the virtual clock: the daemons' window and aggregator, and the paths between them.

Servers that are alike are one, as hosts are: it has the shard of the last of them, of which none has a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from typing_extensions import override

from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.planner.partition import FrameSpec, Framing
from taihu.core.trace import Tracer
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.headers import At, FrameHeader
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Question
from taihu.ps_server.aggregator import Aggregator, Complete
from taihu.simulation.network import Fabric, Host, Path
from taihu.simulation.sizes import Sizes
from taihu.simulation.worker import SimulatedRoute, SimulatedWorker
from taihu.worker.exchange.base.route import Updated
from taihu.worker.exchange.servers.answers import FramesUnderWay

_GRADIENTS: Final = Gradients()
_QUESTION: Final = Question()


class SimulatedServer:
    """One server, or several that are alike: collects frames, adds them up, updates and answers.

    Args:
        index: of the server.
        aggregator: of its frames, for workers of so many kinds; those of one kind push together.
        framing: of its shard.
        host: where it runs.
        sizes: of messages.
        tracer: gets the entries that a real server's gets.

    Attributes:
        is_over: whether it takes in nothing any more: its process is gone, or goes on as another object.
    """

    def __init__(  # noqa: PLR0917 - what a server is made of
        self,
        index: int,
        aggregator: Aggregator[None],
        framing: Framing,
        host: Host,
        sizes: Sizes,
        tracer: Tracer,
    ) -> None:
        self.index = index
        self.framing = framing
        self.host = host
        self.tracer = tracer
        self.is_over = False
        self._aggregator = aggregator
        self._links: list[_Link] = []
        self._sizes = sizes

    def link(self, link: _Link) -> _Link:
        """Take frames of a worker."""
        self._aggregator.admit(len(self._links), link.sender.incarnation)
        self._links.append(link)
        return link

    def push(self, link: _Link, frame: FrameSpec, at: At) -> None:
        """A worker's frame has come; the last one leads to the sum, the update and all answers."""
        if self.is_over or link.is_over:
            return
        header = FrameHeader(link.sender, at.range(frame), _GRADIENTS)
        outcome = self._aggregator.offer(header, None)
        if isinstance(outcome, Complete):
            seconds = self._sizes.server_seconds(frame)
            self.host.memory.do(seconds, self._applied, frame, at, seconds)

    def ask(self, link: _Link, frame: FrameSpec, at: At) -> None:
        """A worker's question has come."""
        if self.is_over or link.is_over:
            return
        asked = self._aggregator.check_asked(FrameHeader(link.sender, at.range(frame), _QUESTION, Encoding.NONE))
        link.down.send(self._sizes.parameters(asked), link.fetched, asked, at)

    def _applied(self, frame: FrameSpec, at: At, seconds: float) -> None:
        self._aggregator.applied(frame)
        now, size = self._links[0].queue.now, self._sizes.answered(frame)
        self.tracer.add("update", "update", now - seconds, now, step=at.step, group=frame.group)
        for link in self._links:
            link.down.send(size, link.answered, frame, at, now, size, urgent=size <= HEADER_BYTES)


class _Link:
    """The exchange of one worker with one server, or of those that are alike; as `worker.exchange.servers.link`."""

    def __init__(  # noqa: PLR0917 - both ends, and what is between them
        self,
        worker: SimulatedWorker,
        server: SimulatedServer,
        fabric: Fabric,
        sender: Sender,
        window: int,
        sizes: Sizes,
        version: int,
    ) -> None:
        self.queue = worker.queue
        self.sender = sender
        self.down = fabric.to_all(server.host, worker.host)
        self._up: Path = fabric.to_all(worker.host, server.host)
        self._worker, self._server = worker, server
        self._sizes = sizes
        self._under_way = FramesUnderWay[FrameSpec](window)
        self._taking = worker.host.thread()
        self._at = At(version, 0)

    @property
    def is_over(self) -> bool:
        """Whether the worker is."""
        return self._worker.is_over

    def frames(self, group: int) -> Sequence[FrameSpec]:
        """The group's frames for this server."""
        return self._server.framing.by_group[group]

    def begin(self, at: At) -> None:
        """Frames pushed from now on belong to `at`."""
        self._at = at

    def push(self, group: int) -> float:
        """Send the group's frames; returns their bytes to all servers that this one stands for."""
        for frame in self.frames(group):
            if self._under_way.push(frame.offset, frame):
                self._pass(frame)
        return self._server.host.count * sum(map(self._sizes.pushed, self.frames(group)))

    def ask(self, group: int, step: int) -> None:
        """Ask for the group's parameters as they are after `step`, where they have been answered."""
        for frame in self._under_way.ask(self.frames(group)):
            self._ask(frame, step)

    def answered(self, frame: FrameSpec, at: At, sent_s: float, size_bytes: float) -> None:
        """The answer to a frame has come."""
        seconds = self._sizes.taking_seconds(frame)
        if seconds:
            self._taking.do(seconds, self._taken, frame, at, sent_s, size_bytes)
        else:
            self._taken(frame, at, sent_s, size_bytes)

    def _taken(self, frame: FrameSpec, at: At, sent_s: float, size_bytes: float) -> None:
        if self.is_over:
            return
        self._trace("pull", frame.group, sent_s, self.queue.now)
        wanted, admitted = self._under_way.answered(frame.offset)
        if wanted is not None:
            self._ask(wanted, at.step)
        if admitted is not None:
            self._pass(admitted)
        received = round(self._server.host.count * size_bytes)
        self._worker.updated(Updated(frame.group, at, 0, received, sent_s))

    def fetched(self, frame: FrameSpec, at: At) -> None:
        """Parameters that were asked for have come."""
        self._worker.arrived(frame.group, at.attempt)

    def _ask(self, frame: FrameSpec, step: int) -> None:
        at = At(self._at.plan, step, self._at.attempt)
        self._up.send(HEADER_BYTES, self._server.ask, self, frame, at, urgent=True)

    def _pass(self, frame: FrameSpec) -> None:
        traced = partial(self._trace, "push", frame.group) if self._worker.tracer.enabled else None
        self._up.send(self._sizes.pushed(frame), self._server.push, self, frame, self._at, on_left=traced)

    def _trace(self, name: str, group: int, start: float, stop: float) -> None:
        tracer, index = self._worker.tracer, self._server.index
        if tracer.enabled:
            track = f"{name} server {index}"
            tracer.add(track, name, start, stop, step=self._at.step, group=group, peer=index)


class ServersRoute(SimulatedRoute):
    """One worker's links to all servers."""

    def __init__(self, worker: SimulatedWorker, links: Sequence[_Link], update_seconds: float) -> None:
        self._worker = worker
        self._links = links
        self._update_seconds = update_seconds

    @override
    def parts(self, group: int) -> int:
        return sum(len(link.frames(group)) for link in self._links)

    @override
    def begin(self, at: At) -> None:
        for link in self._links:
            link.begin(at)

    @override
    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        return round(sum(link.push(group) for link in self._links))

    @override
    def apply(self, at: At, loss_scale: float) -> None:
        """Update, as every worker does where the servers only add."""
        self._worker.work(self._update_seconds, lambda: self._worker.applied(at))

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
    window, update_seconds = job.exchange.window_frames, sizes.update_seconds()

    def route(kind: int, worker: SimulatedWorker) -> SimulatedRoute:
        sender = Sender(1, kind)
        links = [
            server.link(_Link(worker, server, fabric, sender, window, sizes, plan.version)) for server in servers
        ]
        return ServersRoute(worker, links, update_seconds)

    return [route(kind, worker) for kind, worker in enumerate(workers)]
