"""One worker's frames to one server, and what comes back: they go up at most a window ahead of their answers.

`taihu.worker.exchange.servers.end` opens the way that they take, and closes it; the simulator has one with a price.
"""

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
from taihu.core.planner.carriage import carriers_of
from taihu.core.planner.partition import FrameSpec, Framing
from taihu.core.system.threads import Condition, Event, Lock
from taihu.core.trace import Tracer
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.headers import Address, At, Frame, FrameHeader, ValueType, frame_of
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Parameters, Question, Rates, Summed
from taihu.core.wire.links.inbox import Sink
from taihu.core.wire.links.pipe import FrameWay, PipeEvents
from taihu.worker.exchange.base.route import Arrived, RouteEvents, Updated
from taihu.worker.exchange.base.updates import Updates
from taihu.worker.exchange.servers.answers import FramesUnderWay, ServerAnswers
from taihu.worker.memory.arenas import Arenas

_LOOK_AGAIN_S = 0.1

Pushed = tuple[FrameHeader, Sequence[NDArray[Any]]]


class ServerLink:
    """Pushes this worker's part of every group to server `index`, and writes the answers into the parameter arena.

    `connect(sink, events)` makes the way of frames, which hands the sink what comes. The server's clock is at least
    `server_ahead_s` ahead of what `now` says; -inf where nothing is known. `answers` says where values are.
    """

    def __init__(
        self,
        *,
        job: Job,
        plan: Plan,
        framing: Framing,
        index: int,
        peer: str,
        sender: Sender,
        arenas: Arenas,
        updates: Updates,
        events: RouteEvents,
        now: Callable[[], float],
        tracer: Tracer,
        connect: Callable[[Sink, PipeEvents], FrameWay],
        server_ahead_s: float = -math.inf,
    ) -> None:
        self.peer = peer
        self.sent_bytes = 0
        self.received_bytes = 0
        # The steps that frames had come to by their last answers, where workers may stand at several.
        self._has_come_to: dict[int, int] | None = None if job.consistency.is_strict else {}
        self._index = index
        self._now = now
        self._tracer = tracer
        self._server_ahead_s = server_ahead_s
        self._job = job
        self._sender = sender
        self._arenas = arenas
        self._events = events
        self._carriers = carriers_of(plan.carriage)
        self._framing = framing
        selected_type = ValueType.named(job.compression.downlink_value_type)
        self.answers = ServerAnswers(peer, updates, arenas.value_type, framing, plan.version, selected_type)
        self.at = At(plan.version, 0)
        self._arrived_s = self._send_start_s = 0.0
        self._under_way = FramesUnderWay[Pushed](job.exchange.window_frames)
        # Guards what is under way, `sent_bytes`, and the order in which frames are sent.
        self._ordering = Condition(Lock())
        self._is_writing = self._abandoned = False
        sink = Sink((Summed, Parameters), places=self._places, take=self._take_values, take_frame=self._take_frame)
        self._link = connect(sink, PipeEvents(events.failed, self._ended))

    def carry(self) -> None:
        """Send frames by the plan's carrier, or where they say only where values lie, by the fastest."""
        self._link.carry("tcp" if self.answers.shared is not None else self._carriers[self.at.step % 2])

    @property
    def come_to(self) -> list[int]:
        """The steps that the server's frames had come to by their last answers; none where all make each step."""
        come = self._has_come_to
        return [] if come is None else [come.get(offset, 0) for offset in self._framing.by_offset]

    def adopt(self, plan: Plan, framing: Framing) -> None:
        """Cut groups by `plan`, of which `framing` is, from the next step on; nothing may be under way."""
        self._carriers = carriers_of(plan.carriage)
        # Parameters may be asked for before the step begins.
        self.at = self.at._replace(plan=plan.version)
        self._framing = framing
        if self._has_come_to:
            self._has_come_to.clear()
        self.answers.adopt(framing, plan.version)

    def begin(self, at: At) -> None:
        """Frames pushed from now on belong to `at`."""
        self.at = at
        self.answers.begin(at)
        if self._carriers[0] != self._carriers[1]:
            self.carry()

    def tell(self, rates: Sequence[float]) -> None:
        """Send the learning rates of the step that has begun, before its gradients."""
        address = Address(self.at, 0, 0, len(rates))
        encoding = Encoding.DENSE if rates else Encoding.NONE
        header = FrameHeader(self._sender, address, Rates(), encoding, ValueType.FP64)
        self.sent_bytes += HEADER_BYTES + len(rates) * ValueType.FP64.dtype.itemsize
        self._link.send(header, (np.array(rates, dtype=ValueType.FP64.dtype),) if rates else ())

    def cancel(self) -> None:
        """Forget what is under way, and drop what still comes; returns when no arena is read or written for it."""
        with self._ordering:
            self.answers.cancel()
            if self._has_come_to:
                # Where the run goes back, steps that were answered are made again.
                self._has_come_to.clear()
            self._under_way = FramesUnderWay[Pushed](self._job.exchange.window_frames)
        sent = Event()
        self._link.after(sent.set)
        while not self._abandoned and not sent.wait(_LOOK_AGAIN_S):
            pass
        with self._ordering:
            while self._is_writing and not self._abandoned:
                self._ordering.wait(_LOOK_AGAIN_S)
            self.answers.forget()

    def frames(self, group: int) -> tuple[FrameSpec, ...]:
        """The group's frames for this server: what is pushed, and how many answers there will be."""
        return self._framing.by_group[group]

    def push(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        """Queue the group's gradients, all of them; what is said of the step goes with them (`Gradients`).

        Returns their bytes, headers included.
        """
        sent = 0
        shared = self.answers.shared is not None
        encoding = Encoding.SHARED if shared else Encoding.DENSE
        gradients = Gradients(loss_scale, skipped)
        for frame in self.frames(group):
            pieces = () if shared else tuple(map(self._arenas.sent.__getitem__, frame.slices))
            header = FrameHeader(self._sender, self.at.range(frame), gradients, encoding, self._arenas.value_type)
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
        self.answers.expect(frame, step)
        address = At(self.at.plan, step, self.at.attempt).range(frame)
        header = FrameHeader(self._sender, address, Question(), Encoding.NONE)
        self.sent_bytes += HEADER_BYTES
        # Not in the window: nothing goes up, and what comes down was asked for piece by piece.
        self._link.send(header, (), urgent=True)

    def push_sparse(self, frame: FrameSpec, packed: Packed, value_type: ValueType) -> int:
        """Queue what was selected of `frame`; the arrays are copied. Returns its bytes, header included."""
        address = self.at.range(frame)
        header = FrameHeader(self._sender, address, Gradients(), Encoding.SPARSE, value_type, selected=packed.count)
        return self._send(header, (packed.values.copy(), packed.sections.copy()))

    def abandon(self) -> None:
        """Wait for nothing any more: the way has been cut."""
        self._abandoned = True

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
        self._send_start_s = self._now()

    def _sent(self, header: FrameHeader) -> None:
        self._trace("push", header.address.group, self._send_start_s)

    def _ended(self) -> None:
        self._events.failed(ExchangeError(f"{self.peer} ended the exchange at step {self.at.step}"))

    def _places(self, header: FrameHeader) -> Sequence[NDArray[Any]] | None:
        self._arrived_s = self._now()
        return self.answers.places(header) if self._writes(header) else None

    def _take_values(self, header: FrameHeader, values: Sequence[NDArray[Any]], in_place: bool) -> None:
        if not in_place:
            self._take_frame(frame_of(header, values[0].view(np.uint8)))
            return
        self.answers.received(header)
        self._written(header, HEADER_BYTES + sum(each.nbytes for each in values))

    def _take_frame(self, answer: Frame) -> None:
        self._arrived_s = self._now()
        if self._writes(answer.header):
            self.answers.write(answer)
            self._written(answer.header, HEADER_BYTES + answer.moved_bytes)

    def _writes(self, header: FrameHeader) -> bool:
        """Whether an answer is to be written, which `_written` ends; those of earlier attempts are not."""
        with self._ordering:
            self._is_writing = self.answers.is_present(header)
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
            if isinstance(kind, Summed) and self.answers.is_present(header):
                self._go_on(header)
        if not isinstance(kind, Summed):
            self._events.arrived(Arrived(group, header.address.at.attempt, 0, size))
            return
        if self._tracer.enabled:
            self._trace("pull", group, self._arrived_s)
        if self._has_come_to is not None:
            self._has_come_to[header.address.offset] = header.address.at.step + kind.ahead
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
        self._tracer.add(track, name, start_s, self._now(), step=self.at.step, group=group, peer=self._index)
