"""One worker's exchange with one server: frames go up at most a window ahead of their answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from taihu.coordination.plan import Plan
from taihu.errors import ExchangeError, MemberLostError, TaihuError
from taihu.job import Job
from taihu.planner.partition import FrameSpec, Framing, Shard
from taihu.trace import Tracer
from taihu.wire.channel import open_channel
from taihu.wire.clock import Clock
from taihu.wire.codec import Frame, FrameHeader, ValueType, read_frame
from taihu.wire.direct_frames import HEADER_BYTES, DirectReceiver, DirectSender, Origin, Sink
from taihu.wire.identity import WorkerIdentity, identity_to_metadata
from taihu.wire.shared_memory import SharedBuffer
from taihu.wire.status import error_from_rpc
from taihu.wire.stream_frames import StreamSender
from worker.exchange.servers.answer_destination import AnswerDestination, WrittenHere
from worker.exchange.servers.answers import ServerAnswers
from worker.exchange.servers.calls import Call, ServerCalls
from worker.exchange.servers.send_window import FrameWindow
from worker.memory.arenas import Arenas

__all__ = ["LinkEvents", "ServerLink"]

_FAREWELL_S = 2.0

Pushed = tuple[FrameHeader, Sequence[NDArray[Any]]]


@dataclass(frozen=True)
class LinkEvents:
    """What a link tells, by threads of its own.

    `answered(header, size_bytes, completed_s)` is called for every answer that has been written, with the instant of
    the complete sum in seconds of this worker's clock; `fetched(header, size_bytes)` for parameters that were asked
    for; `failed(error)` when the exchange ends unasked.
    """

    answered: Callable[[FrameHeader, int, float], None]
    fetched: Callable[[FrameHeader, int], None]
    failed: Callable[[TaihuError], None]


class ServerLink:
    """Pushes this worker's part of every group to server `index`, and writes the answers into the parameter arena.

    `open` comes before the first step, `initialize` or `fetch`, and `share`, before that.
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
        destination: AnswerDestination,
        events: LinkEvents,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self.peer = f"server {index} at {address}"
        self.sent_bytes = 0
        self.received_bytes = 0
        self.sent_by_group: list[int] = []
        """Bytes of the present step, by group."""
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
        self._answers = ServerAnswers(self.peer, job.name, arenas.parameters, destination, arenas.value_type)
        self._step = 0
        self._arrived_s = self._send_start_s = 0.0
        self._closed = False
        self._abandoned = False
        self._window = FrameWindow[Pushed](job.exchange.window_frames)
        self._unanswered: set[int] = set()
        self._wanted: dict[int, FrameSpec] = {}
        # Guards the window, what is unanswered or wanted, `sent_bytes`, and the order in which frames are sent.
        self._ordering = threading.Lock()
        self._channel = open_channel(address)
        self._calls = ServerCalls(self._channel, job, identity, peer=self.peer, address=address, track=self._track)
        self._call: Call | None = None
        self._stream = StreamSender()
        self._direct: DirectSender | None = None
        self._receiver: DirectReceiver | None = None
        self._sender: StreamSender | DirectSender = self._stream
        self._watcher: threading.Thread | None = None
        self.adopt(plan)

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
        initial = WrittenHere(self._arenas.parameters)
        frames = self._state_frames if self._arenas.parameter_pages is None else ()
        self._calls.fetch(self._plan.layout.digest, frames, partial(initial.write, step=0))

    @property
    def path(self) -> str:
        """How values travel: `same-host`, `tcp` on a connection of their own, or `grpc` in the stream."""
        if self._answers.shared is not None:
            return "same-host"
        return "tcp" if self._direct is not None else "grpc"

    def share(self, gradients: SharedBuffer) -> None:
        """Exchange values in shared memory, if this worker's `gradients` and the server's parameters can be."""
        self._answers.shared = self._calls.share(gradients, self._shard.elements)

    def open(self) -> None:
        """Open the exchange: frames take a connection of their own if there can be one, else the stream."""
        connection = self._calls.open_connection() if self._job.exchange.transport != "grpc" else None
        answers = self._calls.exchange()(self._stream.messages(), metadata=identity_to_metadata(self._identity))
        self._track(answers)
        self._watcher = threading.Thread(target=self._watch, args=(answers,), name="pull", daemon=True)
        self._watcher.start()
        if connection is not None:
            sink = Sink(places=self._places, take=self._take_values, take_frame=self._take_frame)
            origin = Origin(self.peer, self._job.name)
            self._sender = self._direct = DirectSender(connection.dup(), self.peer, self._connection_lost)
            ended = partial(self._connection_lost, MemberLostError(f"{self.peer} was lost: its connection ended"))
            self._receiver = DirectReceiver(connection, origin, sink, self._connection_lost, ended)

    def adopt(self, plan: Plan) -> None:
        """Cut groups by `plan` from the next step on; nothing may be under way."""
        self._plan = plan
        self._framing = Framing(self._shard, plan.groups, plan.frame_elements)
        self._answers.adopt(self._framing, plan.version)

    def begin(self, step: int) -> None:
        """Frames pushed from now on belong to `step`."""
        self._step = step
        self._answers.begin(step)
        self.sent_by_group = [0] * len(self._framing.by_group)

    def frames(self, group: int) -> tuple[FrameSpec, ...]:
        """The group's frames for this server: what is pushed, and how many answers there will be."""
        return self._framing.by_group[group]

    def push(self, group: int, *, loss_scale: float, skipped: bool) -> None:
        """Queue the group's gradients, all of them; what is said of the step goes with them (`FrameHeader`)."""
        shared = self._answers.shared is not None
        for frame in self.frames(group):
            pieces = () if shared else frame.views(self._arenas.sent)
            header = self._header(frame, value_type=self._arenas.value_type)
            self._send(replace(header, shared=shared, loss_scale=loss_scale, skipped=skipped), pieces)

    def ask(self, group: int, step: int) -> None:
        """Ask for the group's parameters as they are after `step`; `LinkEvents.fetched` tells of each frame.

        Frames that have been pushed in this step are asked for one by one, as soon as they have been answered.
        """
        with self._ordering:
            for frame in self.frames(group):
                if frame.offset in self._unanswered:
                    self._wanted[frame.offset] = frame
                else:
                    self._ask(frame, step)

    def _ask(self, frame: FrameSpec, step: int) -> None:
        self._answers.expect(frame, step)
        header = replace(self._header(frame), step=step, bare=True)
        self.sent_bytes += HEADER_BYTES
        # Not in the window: nothing goes up, and what comes down was asked for piece by piece.
        self._sender.send(header, (), urgent=True)

    def push_sparse(
        self, frame: FrameSpec, values: NDArray[Any], value_type: ValueType, sections: NDArray[np.uint8]
    ) -> None:
        """Queue what was selected of `frame`; the arrays are copied."""
        header = self._header(frame, selected=len(values), value_type=value_type)
        self._send(header, (values.copy(), sections.copy()))

    def abandon(self) -> None:
        """Cut the exchange; whoever waits for it has been told why."""
        self._closed = self._abandoned = True
        self._stream.stop()
        if self._direct is not None:
            self._direct.stop()
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """End the exchange in good order and close the connections."""
        self._closed = True
        self._stream.end()
        if self._watcher is not None:
            self._watcher.join()
        if self._receiver is not None:
            self._receiver.close()
        if self._direct is not None:
            self._direct.close(_FAREWELL_S)
        self._channel.close()

    def _send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> None:
        """Queue a frame for the sending thread as soon as there is room in the window."""
        size = HEADER_BYTES + sum(piece.nbytes for piece in pieces) + header.shared_bytes
        self.sent_by_group[header.group] += size
        with self._ordering:
            self.sent_bytes += size
            self._unanswered.add(header.offset)
            # Values in shared memory occupy no buffer.
            self._pass([(header, pieces)] if header.shared else self._window.put((header, pieces)))

    def _pass(self, admitted: Iterable[Pushed]) -> None:
        for header, pieces in admitted:
            self._sender.after(self._sending)
            self._sender.send(header, pieces)
            self._sender.after(partial(self._sent, header))

    def _sending(self) -> None:
        self._send_start_s = self._clock.now()

    def _sent(self, header: FrameHeader) -> None:
        self._trace("push", header.group, self._send_start_s)

    def _header(
        self,
        frame: FrameSpec,
        selected: int | None = None,
        value_type: ValueType = ValueType.FP32,
    ) -> FrameHeader:
        return FrameHeader(
            job=self._job.name,
            incarnation=self._identity.incarnation,
            plan=self._plan.version,
            step=self._step,
            group=frame.group,
            offset=frame.offset,
            count=frame.count,
            sender=self._identity.rank,
            selected=selected,
            value_type=value_type,
        )

    def _track(self, call: Call) -> None:
        """`abandon` cuts `call` from now on, also when it came first."""
        self._call = call
        if self._abandoned:
            call.cancel()

    def _watch(self, answers: Iterable[bytes]) -> None:
        """Take the answers in the stream, if they come there, until it ends; runs in a thread of its own."""
        try:
            for message in answers:
                self._arrived_s = self._clock.now()
                answer = read_frame(message)
                asked = self._answers.write(answer)
                self._answered(answer.header, len(message) + answer.header.shared_bytes, asked=asked)
            self._fail(ExchangeError(f"{self.peer} ended the exchange at step {self._step}"))
        except grpc.RpcError as error:
            self._fail(error_from_rpc(error, f"{self.peer}, step {self._step}"))
        except TaihuError as error:
            self._fail(error)

    def _connection_lost(self, error: TaihuError) -> None:
        """The connection for values broke, or brought what it must not."""
        if isinstance(error, MemberLostError) and self._watcher is not None:
            # The server may be about to say why.
            self._watcher.join(_FAREWELL_S)
        self._fail(error)

    def _fail(self, error: TaihuError) -> None:
        if not self._closed:
            self._events.failed(error)

    def _places(self, header: FrameHeader) -> Sequence[NDArray[Any]]:
        self._arrived_s = self._clock.now()
        return self._answers.places(header)

    def _take_values(self, header: FrameHeader, values: Sequence[NDArray[Any]], _: bool) -> None:
        asked = self._answers.received(header)
        self._answered(header, HEADER_BYTES + sum(each.nbytes for each in values), asked=asked)

    def _take_frame(self, answer: Frame) -> None:
        self._arrived_s = self._clock.now()
        asked = self._answers.write(answer)
        self._answered(answer.header, HEADER_BYTES + answer.moved_bytes, asked=asked)

    def _answered(self, header: FrameHeader, size: int, *, asked: bool) -> None:
        self.received_bytes += size
        if asked:
            self._events.fetched(header, size)
            return
        # The answer that came fastest after its sum tells how far the server's clock is ahead at least.
        self._server_ahead_s = max(self._server_ahead_s, header.completed_s - self._arrived_s)
        with self._ordering:
            self._unanswered.discard(header.offset)
            wanted = self._wanted.pop(header.offset, None)
            if wanted is not None:
                self._ask(wanted, header.step)
            if not header.shared:
                self._pass(self._window.answered())
        self._trace("pull", header.group, self._arrived_s)
        self._events.answered(header, size, header.completed_s - self._server_ahead_s)

    def _trace(self, name: str, group: int, start_s: float) -> None:
        if self._tracer.enabled:
            track = f"{name} server {self._index}"
            self._tracer.add(track, name, start_s, self._clock.now(), step=self._step, group=group, peer=self._index)
