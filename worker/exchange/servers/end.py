"""This worker's end of the way to one server: the calls before the first step, what frames take, and its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.job.security import security_of
from taihu.core.planner.partition import FrameSpec, Framing, Shard
from taihu.core.security.identity import member_name
from taihu.core.wire.frames.frame_faults import FrameFaults
from taihu.core.wire.frames.identity import Sender, WorkerIdentity
from taihu.core.wire.links.frame_link import FrameLink, LinkEnd
from taihu.core.wire.links.inbox import Origin, Sink
from taihu.core.wire.links.outbox import last_word
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.worker.exchange.servers.answers import ByServers
from taihu.worker.exchange.servers.calls import PARAMETER_SERVER_SERVICE, ServerCalls
from taihu.worker.exchange.servers.link import ServerLink
from taihu.worker.memory.arenas import Arenas


class ServerEnd:
    """Opens and closes the way to server `index`; `link`, which `make_link` makes with it, is what goes on it.

    `open` comes before the first step, `start` and `share` before that. `faults` are those of the
    frames that it sends.
    """

    def __init__(  # noqa: PLR0917 - both ends, and what is between them
        self,
        job: Job,
        plan: Plan,
        index: int,
        address: str,
        identity: WorkerIdentity,
        arenas: Arenas,
        make_link: Callable[..., ServerLink],
        faults: FrameFaults | None = None,
    ) -> None:
        peer = f"server {index} at {address}"
        origin = Origin(peer, Sender(0), f"worker {identity.rank}", job.patience)
        security = security_of(job, "worker", identity.rank)
        end = LinkEnd(PARAMETER_SERVER_SERVICE, address, origin, member_name("server", index), security)

        def connect(sink: Sink, events: PipeEvents) -> FrameLink:
            self._way = FrameLink(end, identity, sink, events, faults=faults)
            return self._way

        self._identity, self._arenas, self._plan = identity, arenas, plan
        self._shard = Shard(plan.layout, job.cluster.servers, index)
        self.link = make_link(index=index, framing=self._framing(), peer=peer, connect=connect)
        self.calls = ServerCalls(
            self._way.channel,
            job,
            identity,
            peer=peer,
            track=self._way.track,
            is_abandoned=lambda: self._abandoned,
        )
        self._opened = self._abandoned = False

    def start(self, prepare: Callable[[FrameSpec], None]) -> None:
        """Bring the arena's values to the server, as worker 0, or fetch them; see `ServerCalls`.

        An arena that does not hold all of them at once is left alone. `prepare` is called with every frame before its
        values are read.

        Raises:
            ModelError: this worker's model differs from the server's.
        """
        plan, arenas = self._plan, self._arenas
        frames = self._shard.state_frames(plan.frame_elements)
        if self._identity.rank == 0:
            self.calls.initialize(plan.layout, plan.version, frames, arenas.parameters, prepare)
            return
        initial = ByServers(arenas.parameters)
        frames = frames if arenas.parameter_pages is None else ()
        self.calls.fetch(plan.layout.digest, frames, partial(initial.write, step=0))

    def meet(self, *, at_end: bool, fetches: bool) -> Callable[[], bool]:
        """Come to a meeting; returns what waits for all workers, and writes the parameters of that moment.

        See `ServerCalls.meet`.
        """
        frames = self._shard.state_frames(self._plan.frame_elements) if fetches else ()
        write = partial(ByServers(self._arenas.parameters).write, step=0)
        return self.calls.meet(self._plan.layout.digest, frames, write, at_end=at_end)

    @property
    def path(self) -> str:
        """The way of values: `same-host`, `tcp` on a connection of their own, or `grpc` in the stream."""
        return "same-host" if self.link.answers.shared is not None else self._way.path

    def share(self, gradients: SharedBuffer) -> None:
        """Exchange values in shared memory, if this worker's `gradients` and the server's parameters can be."""
        self.link.answers.shared = self.calls.share(gradients, self._shard.elements)

    def prepare(self) -> None:
        """Begin to open the connection that the plan, or shared memory, needs; see `FrameLink.prepare`."""
        if self.link.answers.shared is not None or self._plan.carriage != "grpc":
            self._way.prepare("tcp")

    def open(self) -> None:
        """Open the exchange: frames take a connection of their own if the plan says so, else the stream.

        A trial does not wait for it: until it is there, or where there cannot be one, all steps take the stream.
        """
        self.prepare()
        self._settle()
        self.link.carry()
        self._way.open()
        self._opened = True

    def _framing(self) -> Framing:
        return Framing(self._shard, self._plan.groups, self._plan.frame_elements)

    def _settle(self) -> None:
        if self.link.answers.shared is not None or self._plan.carriage == "tcp":
            self._way.settle()

    def adopt(self, plan: Plan) -> None:
        """Go on by `plan` from the next step on; nothing may be under way."""
        self._plan = plan
        self.link.adopt(plan, self._framing())
        if self._opened:
            self.prepare()
            self._settle()
            self.link.carry()

    def abandon(self) -> None:
        """Cut the exchange; whoever waits for it has been told why."""
        self._abandoned = True
        self.link.abandon()
        self._way.abandon()

    def close(self) -> None:
        """End the exchange in good order, after everything has been answered, and close the connections."""
        self._way.take_leave(last_word(self._identity.sender, self.link.at))
        self._way.close()
