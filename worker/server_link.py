"""The stream between this worker and one server."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from kernels.pack import unpack
from kernels.scatter import scatter_assign
from protos import parameter_server_pb2 as pb
from taihu.coordination.plan import Plan
from taihu.errors import ExchangeError, FrameError, SharedMemoryError, TaihuError
from taihu.job import Job
from taihu.planner.partition import FrameSpec, Framing, Shard
from taihu.trace import Tracer
from taihu.wire.channel import open_channel
from taihu.wire.clock import Clock, SystemClock
from taihu.wire.codec import (
    BYTES_PER_VALUE,
    Frame,
    FrameHeader,
    ValueType,
    decode_frame,
    dense_values,
    encode_frame,
    layout_to_message,
    read_frame,
)
from taihu.wire.identity import WorkerIdentity, identity_to_metadata
from taihu.wire.retry import call_until_reachable
from taihu.wire.shared_memory import SharedBuffer, buffer_from_message, buffer_to_message, open_shared
from taihu.wire.status import error_from_rpc
from worker.arenas import Arenas

__all__ = ["ServerLink"]

_SERVICE = f"/{pb.DESCRIPTOR.services_by_name['ParameterServerService'].full_name}"


class Call(Protocol):
    """A gRPC call that is under way."""

    def cancel(self) -> bool:
        """Cut the call."""
        ...


class ServerLink:
    """Pushes this worker's part of every group to one server, and writes the answers into the parameter arena.

    `on_answer(header, size_bytes, completed_s)` is called for every answer that has been written, with the instant of
    the complete sum in seconds of this worker's clock, `on_error(error)` once when the stream ends unasked; both by
    the link's own thread.
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
        on_answer: Callable[[FrameHeader, int, float], None],
        on_error: Callable[[TaihuError], None],
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
        self._plan = plan
        self._identity = identity
        self._arenas = arenas
        self._parameter_bytes = arenas.parameters.view(np.uint8)
        self._shared: NDArray[np.float32] | None = None
        self._on_answer = on_answer
        self._on_error = on_error
        self._shard = Shard(plan.layout, job.cluster.servers, index)
        self._state_frames = self._shard.state_frames(plan.frame_elements)
        self._framing = self._frame(plan)
        self._positions: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._step = 0
        self._closed = False
        self._abandoned = False
        self._window = threading.Semaphore(job.exchange.window_frames)
        self._queue: SimpleQueue[tuple[FrameSpec, bytes | None] | None] = SimpleQueue()
        self._channel = open_channel(address)
        self._call: Call | None = None
        self._receiver: threading.Thread | None = None

    def initialize(self) -> None:
        """Send the parameter arena's values as the job's initial parameters."""
        initialize = self._channel.stream_unary(
            f"{_SERVICE}/Initialize", pb.InitializeRequest.SerializeToString, pb.InitializeResponse.FromString
        )
        timeout_s = self._job.exchange.timeout_s

        def call(_: float) -> None:
            under_way = initialize.future(self._initial_requests(), timeout=timeout_s)
            self._track(under_way)
            try:
                under_way.result()
            except grpc.FutureCancelledError:
                raise ExchangeError(f"{self.peer}: the call that brings the parameters was cut") from None

        call_until_reachable(call, peer=self.peer, timeout_s=self._job.cluster.connect_timeout_s, clock=SystemClock())

    def fetch(self) -> None:
        """Write the server's current parameters into the arena; waits until worker 0 has initialized them.

        Raises:
            ModelError: this worker's model differs from the server's.
        """
        fetch: grpc.UnaryStreamMultiCallable[pb.FetchRequest, bytes] = self._channel.unary_stream(
            f"{_SERVICE}/Fetch", pb.FetchRequest.SerializeToString
        )
        request = pb.FetchRequest(
            job=self._job.name, rank=self._identity.rank, layout_digest=self._plan.layout.digest
        )
        missing = {frame.offset: frame for frame in self._state_frames}
        call = fetch(request, timeout=self._job.exchange.timeout_s)
        self._track(call)
        try:
            for message in call:
                header, values = decode_frame(message)
                frame = missing.pop(header.offset, None)
                if frame is None or frame.count != header.count or header.job != self._job.name:
                    raise self._not_asked_for(header)
                self._write(frame, values)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.peer) from None
        if missing:
            raise ExchangeError(
                f"{self.peer}: {len(missing)} of {len(self._state_frames)} frames of parameters did not come"
            )

    @property
    def path(self) -> str:
        """How values travel: `same-host` or `tcp`."""
        return "tcp" if self._shared is None else "same-host"

    def share(self, gradients: SharedBuffer) -> None:
        """Exchange values in shared memory, if this worker's `gradients` and the server's parameters can be.

        Comes after the initial parameters and before `open`; see `path` for the result.
        """
        share = self._channel.unary_unary(
            f"{_SERVICE}/Share", pb.ShareRequest.SerializeToString, pb.ShareResponse.FromString
        )
        identity = self._identity
        request = pb.ShareRequest(
            job=identity.job,
            rank=identity.rank,
            incarnation=identity.incarnation,
            gradients=buffer_to_message(gradients.descriptor),
        )
        try:
            response = share(request, timeout=self._job.exchange.timeout_s)
            if response.HasField("parameters"):
                buffer = open_shared(buffer_from_message(response.parameters))
                self._shared = buffer.array(np.float32, self._shard.elements)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.peer) from None
        except (SharedMemoryError, ValueError) as error:
            structlog.get_logger().info("no memory is shared", peer=self.peer, reason=str(error))

    def open(self) -> None:
        """Open the exchange."""
        exchange: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"{_SERVICE}/Exchange")
        answers = exchange(self._requests(), metadata=identity_to_metadata(self._identity))
        self._track(answers)
        self._receiver = threading.Thread(target=self._receive, args=(answers,), name="pull", daemon=True)
        self._receiver.start()

    def adopt(self, plan: Plan) -> None:
        """Cut groups by `plan` from the next step on; nothing may be under way."""
        self._plan = plan
        self._framing = self._frame(plan)

    def begin(self, step: int) -> None:
        """Frames pushed from now on belong to `step`."""
        self._step = step
        self.sent_by_group = [0] * len(self._framing.by_group)

    def frames(self, group: int) -> tuple[FrameSpec, ...]:
        """The group's frames for this server: what is pushed, and how many answers there will be."""
        return self._framing.by_group[group]

    def push(self, group: int) -> None:
        """Queue the group's gradients, all of them."""
        for frame in self.frames(group):
            self._queue.put((frame, None))

    def push_sparse(
        self, frame: FrameSpec, values: NDArray[Any], value_type: ValueType, sections: NDArray[np.uint8]
    ) -> None:
        """Queue what was selected of `frame`; the arrays are copied."""
        header = self._header(frame, selected=len(values), value_type=value_type)
        self._queue.put((frame, encode_frame(header, (values, sections))))

    def abandon(self) -> None:
        """Cut the stream; whoever waits for it has been told why."""
        self._closed = self._abandoned = True
        self._queue.put(None)
        self._window.release(len(self._framing.frames) + 1)
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """End the stream in good order and close the connection."""
        self._closed = True
        self._queue.put(None)
        if self._receiver is not None:
            self._receiver.join()
        self._channel.close()

    def _requests(self) -> Iterator[bytes]:
        """Frames in the order of pushing, those with values at most a window ahead of their answers."""
        while (item := self._queue.get()) is not None:
            frame, message = item
            shared = message is None and self._shared is not None
            if not shared:
                self._window.acquire()
            if self._abandoned:
                return
            start_s = self._clock.now()
            if shared:
                message = encode_frame(self._header(frame, shared=True), ())
            elif message is None:
                message = self._encode(frame, self._arenas.gradients)
            size = _moved_bytes(message, frame, shared=shared)
            self.sent_bytes += size
            self.sent_by_group[frame.group] += size
            yield message
            self._trace("push", frame, start_s)

    def _initial_requests(self) -> Iterator[pb.InitializeRequest]:
        yield pb.InitializeRequest(layout=layout_to_message(self._plan.layout))
        for frame in self._state_frames:
            request = pb.InitializeRequest()
            request.frame.MergeFromString(self._encode(frame, self._arenas.parameters))
            yield request

    def _frame(self, plan: Plan) -> Framing:
        return Framing(self._shard, plan.groups, plan.frame_elements)

    def _header(
        self,
        frame: FrameSpec,
        selected: int | None = None,
        value_type: ValueType = ValueType.FP32,
        *,
        shared: bool = False,
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
            shared=shared,
        )

    def _encode(self, frame: FrameSpec, arena: NDArray[np.float32]) -> bytes:
        return encode_frame(self._header(frame), [arena[piece.start : piece.stop] for piece in frame.ranges])

    def _track(self, call: Call) -> None:
        """`abandon` cuts `call` from now on, also when it came first."""
        self._call = call
        if self._abandoned:
            call.cancel()

    def _receive(self, answers: Iterable[bytes]) -> None:
        """Write answers until the stream ends; runs in the link's own thread."""
        try:
            for message in answers:
                self._take(message)
            if not self._closed:
                self._on_error(ExchangeError(f"{self.peer} ended the exchange at step {self._step}"))
        except grpc.RpcError as error:
            if not self._closed:
                self._on_error(error_from_rpc(error, f"{self.peer}, step {self._step}"))
        except TaihuError as error:
            self._on_error(error)

    def _take(self, message: bytes) -> None:
        start_s = self._clock.now()
        answer = read_frame(message)
        header = answer.header
        spec = self._framing.find(group=header.group, offset=header.offset, count=header.count)
        if spec is None or header.job != self._job.name or header.plan != self._plan.version:
            raise self._not_asked_for(header)
        if header.step != self._step:
            raise FrameError(f"{self.peer} answered step {header.step} during step {self._step}")
        if header.shared and self._shared is not None:
            self._write(spec, self._shared[spec.offset : spec.offset + spec.count])
        elif header.selected is None:
            self._write(spec, dense_values(answer))
        else:
            self._write_sparse(spec, answer)
        size = _moved_bytes(message, spec, shared=header.shared)
        self.received_bytes += size
        # The answer that came fastest after its sum tells how far the server's clock is ahead at least.
        self._server_ahead_s = max(self._server_ahead_s, header.completed_s - start_s)
        if not header.shared:
            self._window.release()
        self._trace("pull", spec, start_s)
        self._on_answer(header, size, header.completed_s - self._server_ahead_s)

    def _trace(self, name: str, frame: FrameSpec, start_s: float) -> None:
        if self._tracer.enabled:
            track = f"{name} server {self._index}"
            stop_s = self._clock.now()
            self._tracer.add(track, name, start_s, stop_s, step=self._step, group=frame.group, peer=self._index)

    def _not_asked_for(self, header: FrameHeader) -> FrameError:
        return FrameError(
            f"{self.peer} answered job {header.job!r}, plan {header.plan}, group {header.group}, offset "
            f"{header.offset}, {header.count} values: not a frame of plan {self._plan.version}"
        )

    def _write_sparse(self, frame: FrameSpec, answer: Frame) -> None:
        if len(self._positions) < len(answer.values):
            self._positions = np.empty(self._framing.largest, dtype=np.int32)
        positions = self._positions[: len(answer.values)]
        try:
            unpack(answer.sections, frame.arena_bounds, len(answer.values), positions)
        except ValueError as error:
            raise FrameError(f"{self.peer} answered group {frame.group}: {error}") from None
        if answer.header.value_type is not ValueType.FP32:
            raise FrameError(f"{self.peer} answered {answer.header.value_type.label} parameters: expected float32")
        scatter_assign(positions, answer.values, self._arenas.parameters)

    def _write(self, frame: FrameSpec, values: NDArray[np.float32]) -> None:
        source = values.view(np.uint8)
        taken = 0
        for piece in frame.ranges:
            start, stop = piece.start * BYTES_PER_VALUE, piece.stop * BYTES_PER_VALUE
            self._parameter_bytes[start:stop] = source[taken : taken + stop - start]
            taken += stop - start


def _moved_bytes(message: bytes, frame: FrameSpec, *, shared: bool) -> int:
    """What a frame moves: its message and, beside it, the values in shared memory."""
    return len(message) + (frame.count * BYTES_PER_VALUE if shared else 0)
