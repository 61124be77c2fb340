"""The stream between this worker and one server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from protos import parameter_server_pb2 as pb
from taihu.coordination.plan import Plan
from taihu.errors import ExchangeError, FrameError, TaihuError
from taihu.job import Job
from taihu.planner.partition import FrameSpec, Shard
from taihu.wire.channel import open_channel
from taihu.wire.clock import SystemClock
from taihu.wire.codec import BYTES_PER_VALUE, FrameHeader, decode_frame, encode_frame, layout_to_message
from taihu.wire.identity import WorkerIdentity, identity_to_metadata
from taihu.wire.retry import call_until_reachable
from taihu.wire.status import error_from_rpc

__all__ = ["Arenas", "ServerLink"]

_SERVICE = f"/{pb.DESCRIPTOR.services_by_name['ParameterServerService'].full_name}"


class Call(Protocol):
    """A gRPC call that is under way."""

    def cancel(self) -> bool:
        """Cut the call."""
        ...


@dataclass(frozen=True)
class Arenas:
    """The worker's flat fp32 arrays of `layout.elements` values each."""

    parameters: NDArray[np.float32]
    gradients: NDArray[np.float32]


class ServerLink:
    """Pushes this worker's part of every group to one server, and writes the answers into the parameter arena.

    `on_answer(group)` is called for every frame that has been written, `on_error(error)` once when the stream ends
    unasked; both by the link's own thread.
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
        on_answer: Callable[[int], None],
        on_error: Callable[[TaihuError], None],
    ) -> None:
        self.peer = f"server {index} at {address}"
        self.sent_bytes = 0
        self.received_bytes = 0
        self._job = job
        self._plan = plan
        self._identity = identity
        self._arenas = arenas
        self._parameter_bytes = arenas.parameters.view(np.uint8)
        self._on_answer = on_answer
        self._on_error = on_error
        shard = Shard(plan.layout, job.cluster.servers, index)
        self._frames = shard.frames(plan.groups, job.exchange.frame_bytes // BYTES_PER_VALUE)
        self._by_offset = {frame.offset: frame for frame in self._frames}
        self._by_group: list[list[FrameSpec]] = [[] for _ in plan.groups]
        for frame in self._frames:
            self._by_group[frame.group].append(frame)
        self._step = 0
        self._closed = False
        self._abandoned = False
        self._window = threading.Semaphore(job.exchange.window_frames)
        self._queue: SimpleQueue[FrameSpec | None] = SimpleQueue()
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
        missing = set(self._by_offset)
        call = fetch(request, timeout=self._job.exchange.timeout_s)
        self._track(call)
        try:
            for message in call:
                header, values = decode_frame(message)
                self._write(self._answered_frame(header), values)
                missing.discard(header.offset)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.peer) from None
        if missing:
            raise ExchangeError(
                f"{self.peer}: {len(missing)} of {len(self._frames)} frames of parameters did not come"
            )

    def open(self) -> None:
        """Open the exchange."""
        exchange: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"{_SERVICE}/Exchange")
        answers = exchange(self._requests(), metadata=identity_to_metadata(self._identity))
        self._track(answers)
        self._receiver = threading.Thread(target=self._receive, args=(answers,), name="pull", daemon=True)
        self._receiver.start()

    def begin(self, step: int) -> None:
        """Frames pushed from now on belong to `step`."""
        self._step = step

    def push(self, group: int) -> int:
        """Queue the group's frames; returns how many answers there will be."""
        for frame in self._by_group[group]:
            self._queue.put(frame)
        return len(self._by_group[group])

    def frame_count(self, group: int) -> int:
        """How many answers a push of `group` leads to."""
        return len(self._by_group[group])

    def abandon(self) -> None:
        """Cut the stream; whoever waits for it has been told why."""
        self._closed = self._abandoned = True
        self._queue.put(None)
        self._window.release(len(self._frames) + 1)
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
        """Frames in the order of pushing, at most a window ahead of their answers."""
        while (frame := self._queue.get()) is not None:
            self._window.acquire()
            if self._abandoned:
                return
            message = self._encode(frame, self._arenas.gradients)
            self.sent_bytes += len(message)
            yield message

    def _initial_requests(self) -> Iterator[pb.InitializeRequest]:
        yield pb.InitializeRequest(layout=layout_to_message(self._plan.layout))
        for frame in self._frames:
            request = pb.InitializeRequest()
            request.frame.MergeFromString(self._encode(frame, self._arenas.parameters))
            yield request

    def _encode(self, frame: FrameSpec, arena: NDArray[np.float32]) -> bytes:
        header = FrameHeader(
            job=self._job.name,
            incarnation=self._identity.incarnation,
            plan=self._plan.version,
            step=self._step,
            group=frame.group,
            offset=frame.offset,
            count=frame.count,
            sender=self._identity.rank,
        )
        return encode_frame(header, [arena[piece.start : piece.stop] for piece in frame.pieces])

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
        self.received_bytes += len(message)
        header, values = decode_frame(message)
        frame = self._answered_frame(header)
        if header.step != self._step:
            raise FrameError(f"{self.peer} answered step {header.step} during step {self._step}")
        self._write(frame, values)
        self._window.release()
        self._on_answer(frame.group)

    def _answered_frame(self, header: FrameHeader) -> FrameSpec:
        frame = self._by_offset.get(header.offset)
        if header.job != self._job.name or header.plan != self._plan.version:
            raise FrameError(f"{self.peer} answered for job {header.job!r}, plan {header.plan}")
        if frame is None or frame.count != header.count or frame.group != header.group:
            raise FrameError(
                f"{self.peer} answered group {header.group}, offset {header.offset}, {header.count} values: "
                "not a frame of the plan"
            )
        return frame

    def _write(self, frame: FrameSpec, values: NDArray[np.float32]) -> None:
        source = values.view(np.uint8)
        taken = 0
        for piece in frame.pieces:
            start, stop = piece.start * BYTES_PER_VALUE, piece.stop * BYTES_PER_VALUE
            self._parameter_bytes[start:stop] = source[taken : taken + stop - start]
            taken += stop - start
