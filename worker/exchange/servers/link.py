"""One worker's exchange with one server: frames go up at most a window ahead of their answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ExchangeError
from taihu.core.compression.groups import Packed
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.job.security import security_of
from taihu.core.planner.carriage import carriers_of
from taihu.core.planner.partition import FrameSpec, Framing, Shard
from taihu.core.security.identity import member_name
from taihu.core.system.threads import Condition, Event, Lock
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.frame_faults import FrameFaults
from taihu.core.wire.frames.headers import Address, At, Frame, FrameHeader, ValueType, frame_of
from taihu.core.wire.frames.identity import Sender, WorkerIdentity
from taihu.core.wire.frames.kinds import Encoding, Gradients, Parameters, Question, Rates, Summed
from taihu.core.wire.links.frame_link import FrameLink, LinkEnd
from taihu.core.wire.links.inbox import Origin, Sink
from taihu.core.wire.links.outbox import last_word
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.worker.exchange.base.route import Arrived, RouteEvents, Updated
from taihu.worker.exchange.base.updates import Updates
from taihu.worker.exchange.servers.answers import ByServers, FramesUnderWay, ServerAnswers
from taihu.worker.exchange.servers.calls import PARAMETER_SERVER_SERVICE, ServerCalls
from taihu.worker.memory.arenas import Arenas

_LOOK_AGAIN_S = 0.1

Pushed = tuple[FrameHeader, Sequence[NDArray[Any]]]


class ServerLink:
    """Pushes this worker's part of every group to server `index`, and writes the answers into the parameter arena.

    `open` comes before the first step, `initialize` or `fetch`, and `share`, before that. `faults` are those of the
    frames that it sends. `ahead_of` is the last step that is known to have ended without this worker.
    """

    def __init__(
        self,
        *,
        job: Job,
        plan: Plan,
        index: int,
        address: str,
        identity: WorkerIdentity,
        arenas: Arenas,
        updates: Updates,
        events: RouteEvents,
        clock: Clock,
        tracer: Tracer,
        faults: FrameFaults | None = None,
    ) -> None:
        self.peer = f"server {index} at {address}"
        self.sent_bytes = 0
        self.received_bytes = 0
        self.ahead_of = 0
        self._index = index
        self._clock = clock
        self._tracer = tracer
        self._server_ahead_s = -math.inf
        self._job = job
        self._identity = identity
        self._arenas = arenas
        self._events = events
        self._shard = Shard(plan.layout, job.cluster.servers, index)
        self._state_frames = self._shard.state_frames(plan.frame_elements)
        self._plan, self._carriers = plan, carriers_of(plan.carriage)
        self._framing = Framing(self._shard, plan.groups, plan.frame_elements)
        selected_type = ValueType.named(job.compression.downlink_value_type)
        self._answers = ServerAnswers(
            self.peer, updates, arenas.value_type, self._framing, plan.version, selected_type
        )
        self._at = At(plan.version, 0)
        self._arrived_s = self._send_start_s = 0.0
        self._under_way = FramesUnderWay[Pushed](job.exchange.window_frames)
        # Guards what is under way, `sent_bytes`, and the order in which frames are sent.
        self._ordering = Condition(Lock())
        self._is_writing = self._abandoned = False
        origin = Origin(self.peer, Sender(0), f"worker {identity.rank}", job.patience)
        self._link = FrameLink(
            LinkEnd(
                PARAMETER_SERVER_SERVICE,
                address,
                origin,
                member_name("server", index),
                security_of(job, "worker", identity.rank),
            ),
            identity,
            Sink((Summed, Parameters), places=self._places, take=self._take_values, take_frame=self._take_frame),
            PipeEvents(events.failed, self._ended),
            faults=faults,
        )
        self._calls = ServerCalls(
            self._link.channel,
            job,
            identity,
            peer=self.peer,
            track=self._link.track,
            is_abandoned=lambda: self._abandoned,
        )
        self._opened = False

    def initialize(self, prepare: Callable[[FrameSpec], None]) -> None:
        """Send the parameter arena's values as the job's initial parameters; see `ServerCalls.initialize`."""
        plan = self._plan
        self._calls.initialize(plan.layout, plan.version, self._state_frames, self._arenas.parameters, prepare)

    def fetch(self) -> None:
        """Write the server's current parameters into the arena; waits until worker 0 has initialized them.

        An arena that does not hold all of them at once is left alone.

        Raises:
            ModelError: this worker's model differs from the server's.
        """
        initial = ByServers(self._arenas.parameters)
        frames = self._state_frames if self._arenas.parameter_pages is None else ()
        self._calls.fetch(self._plan.layout.digest, frames, partial(initial.write, step=0))

    def meet(self, *, at_end: bool, fetches: bool) -> Callable[[], bool]:
        """Come to a meeting; returns what waits for all workers, and writes the parameters of that moment.

        See `ServerCalls.meet`.
        """
        frames = self._state_frames if fetches else ()
        write = partial(ByServers(self._arenas.parameters).write, step=0)
        return self._calls.meet(self._plan.layout.digest, frames, write, at_end=at_end)

    def keep(self, step: int, *, until_durable: bool) -> Callable[[], None]:
        """Have the server keep what it holds after `step`; returns what waits for that, see `Route.keep`."""
        return self._calls.keep(step, until_durable=until_durable)

    @property
    def path(self) -> str:
        """The way of values: `same-host`, `tcp` on a connection of their own, or `grpc` in the stream."""
        if self._answers.shared is not None:
            return "same-host"
        return self._link.path

    def share(self, gradients: SharedBuffer) -> None:
        """Exchange values in shared memory, if this worker's `gradients` and the server's parameters can be."""
        self._answers.shared = self._calls.share(gradients, self._shard.elements)

    def prepare(self) -> None:
        """Begin to open the connection that the plan, or shared memory, needs; see `FrameLink.prepare`."""
        if self._answers.shared is not None or self._plan.carriage != "grpc":
            self._link.prepare("tcp")

    def open(self) -> None:
        """Open the exchange: frames take a connection of their own if the plan says so, else the stream.

        A trial does not wait for it: until it is there, or where there cannot be one, all steps take the stream.
        """
        self.prepare()
        self._settle()
        self._carry()
        self._link.open()
        self._opened = True

    def _carry(self) -> None:
        """Send frames by the step's carrier; those that say only where values lie take the fastest."""
        shared = self._answers.shared is not None
        self._link.carry("tcp" if shared else self._carriers[self._at.step % 2])

    def _settle(self) -> None:
        if self._answers.shared is not None or self._plan.carriage == "tcp":
            self._link.settle()

    def adopt(self, plan: Plan) -> None:
        """Cut groups by `plan` from the next step on; nothing may be under way."""
        self._plan, self._carriers = plan, carriers_of(plan.carriage)
        # Parameters may be asked for before the step begins.
        self._at = self._at._replace(plan=plan.version)
        self._framing = Framing(self._shard, plan.groups, plan.frame_elements)
        self._answers.adopt(self._framing, plan.version)
        if self._opened:
            self.prepare()
            self._settle()
            self._carry()

    def begin(self, at: At) -> None:
        """Frames pushed from now on belong to `at`."""
        self._at = at
        self._answers.begin(at)
        if self._plan.carriage == "trial":
            self._carry()

    def tell(self, rates: Sequence[float]) -> None:
        """Send the learning rates of the step that has begun, before its gradients."""
        address = Address(self._at, 0, 0, len(rates))
        encoding = Encoding.DENSE if rates else Encoding.NONE
        header = FrameHeader(self._identity.sender, address, Rates(), encoding, ValueType.FP64)
        self.sent_bytes += HEADER_BYTES + len(rates) * ValueType.FP64.dtype.itemsize
        self._link.send(header, (np.array(rates, dtype=ValueType.FP64.dtype),) if rates else ())

    def cancel(self) -> None:
        """Forget what is under way, and drop what still comes; returns when no arena is read or written for it."""
        with self._ordering:
            self._answers.cancel()
            self._under_way = FramesUnderWay[Pushed](self._job.exchange.window_frames)
        sent = Event()
        self._link.after(sent.set)
        while not self._abandoned and not sent.wait(_LOOK_AGAIN_S):
            pass
        with self._ordering:
            while self._is_writing and not self._abandoned:
                self._ordering.wait(_LOOK_AGAIN_S)
            self._answers.forget()

    def frames(self, group: int) -> tuple[FrameSpec, ...]:
        """The group's frames for this server: what is pushed, and how many answers there will be."""
        return self._framing.by_group[group]

    def push(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        """Queue the group's gradients, all of them; what is said of the step goes with them (`Gradients`).

        Returns their bytes, headers included.
        """
        sent = 0
        shared = self._answers.shared is not None
        encoding = Encoding.SHARED if shared else Encoding.DENSE
        gradients = Gradients(loss_scale, skipped)
        for frame in self.frames(group):
            pieces = () if shared else tuple(map(self._arenas.sent.__getitem__, frame.slices))
            header = FrameHeader(
                self._identity.sender, self._at.range(frame), gradients, encoding, self._arenas.value_type
            )
            sent += self._send(header, pieces)
        return sent

    def ask(self, group: int, step: int) -> None:
        """Ask for the group's parameters as they are after `step`; `LinkEvents.fetched` tells of each frame.

        Frames that have been pushed in this step are asked for one by one, as soon as they have been answered.
        """
        with self._ordering:
            for frame in self._under_way.ask(self.frames(group)):
                self._ask(frame, step)

    def _ask(self, frame: FrameSpec, step: int) -> None:
        self._answers.expect(frame, step)
        address = At(self._at.plan, step, self._at.attempt).range(frame)
        header = FrameHeader(self._identity.sender, address, Question(), Encoding.NONE)
        self.sent_bytes += HEADER_BYTES
        # Not in the window: nothing goes up, and what comes down was asked for piece by piece.
        self._link.send(header, (), urgent=True)

    def push_sparse(self, frame: FrameSpec, packed: Packed, value_type: ValueType) -> int:
        """Queue what was selected of `frame`; the arrays are copied. Returns its bytes, header included."""
        address = self._at.range(frame)
        header = FrameHeader(
            self._identity.sender, address, Gradients(), Encoding.SPARSE, value_type, selected=packed.count
        )
        return self._send(header, (packed.values.copy(), packed.sections.copy()))

    def abandon(self) -> None:
        """Cut the exchange; whoever waits for it has been told why."""
        self._abandoned = True
        self._link.abandon()

    def close(self) -> None:
        """End the exchange in good order, after everything has been answered, and close the connections."""
        self._link.take_leave(last_word(self._identity.sender, self._at))
        self._link.close()

    def _send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> int:
        """Queue a frame for the sending thread as soon as there is room in the window."""
        size = HEADER_BYTES + header.shared_bytes
        for piece in pieces:
            size += piece.nbytes
        with self._ordering:
            self.sent_bytes += size
            # Values in shared memory occupy no buffer.
            windowed = header.encoding is not Encoding.SHARED
            if self._under_way.push(header.address.offset, (header, pieces), windowed=windowed):
                self._pass(header, pieces)
        return size

    def _pass(self, header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> None:
        if not self._tracer.enabled:
            self._link.send(header, pieces)
            return
        self._link.after(self._sending)
        self._link.send(header, pieces)
        self._link.after(partial(self._sent, header))

    def _sending(self) -> None:
        self._send_start_s = self._clock.now()

    def _sent(self, header: FrameHeader) -> None:
        self._trace("push", header.address.group, self._send_start_s)

    def _ended(self) -> None:
        self._events.failed(ExchangeError(f"{self.peer} ended the exchange at step {self._at.step}"))

    def _places(self, header: FrameHeader) -> Sequence[NDArray[Any]] | None:
        self._arrived_s = self._clock.now()
        return self._answers.places(header) if self._writes(header) else None

    def _take_values(self, header: FrameHeader, values: Sequence[NDArray[Any]], in_place: bool) -> None:
        if not in_place:
            self._take_frame(frame_of(header, values[0].view(np.uint8)))
            return
        self._answers.received(header)
        self._written(header, HEADER_BYTES + sum(each.nbytes for each in values))

    def _take_frame(self, answer: Frame) -> None:
        self._arrived_s = self._clock.now()
        if self._writes(answer.header):
            self._answers.write(answer)
            self._written(answer.header, HEADER_BYTES + answer.moved_bytes)

    def _writes(self, header: FrameHeader) -> bool:
        """Whether an answer is to be written, which `_written` ends; those of earlier attempts are not."""
        with self._ordering:
            self._is_writing = self._answers.is_present(header)
            return self._is_writing

    def _written(self, header: FrameHeader, size: int) -> None:
        self.received_bytes += size
        group, kind = header.address.group, header.kind
        if isinstance(kind, Summed):
            # The answer that came fastest after its sum tells how far the server's clock is ahead at least.
            self._server_ahead_s = max(self._server_ahead_s, kind.completed_s - self._arrived_s)
        with self._ordering:
            self._is_writing = False
            self._ordering.notify_all()
            if isinstance(kind, Summed) and self._answers.is_present(header):
                self._go_on(header)
        if not isinstance(kind, Summed):
            self._events.arrived(Arrived(group, header.address.at.attempt, 0, size))
            return
        if self._tracer.enabled:
            self._trace("pull", group, self._arrived_s)
        if kind.ahead:
            self.ahead_of = max(self.ahead_of, header.address.at.step + kind.ahead)
        completed_s = kind.completed_s - self._server_ahead_s
        self._events.updated(Updated(group, header.address.at, 0, size, completed_s, kind.skipped))

    def _go_on(self, header: FrameHeader) -> None:
        """Ask for what has been answered and is wanted, and let the next frames go."""
        at, _, offset, _ = header.address
        wanted, admitted = self._under_way.answered(offset, windowed=header.encoding is not Encoding.SHARED)
        if wanted is not None:
            self._ask(wanted, at.step)
        if admitted is not None:
            self._pass(*admitted)

    def _trace(self, name: str, group: int, start_s: float) -> None:
        track = f"{name} server {self._index}"
        self._tracer.add(track, name, start_s, self._clock.now(), step=self._at.step, group=group, peer=self._index)
