"""Calls of a worker to a server before the exchange: for parameters, shared memory, and a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, ExchangeError, FrameError, SharedMemoryError
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.partition import FrameSpec
from taihu.core.system.threads import Lock
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.base.retry import call_until_reachable
from taihu.core.wire.base.status import error_from_rpc
from taihu.core.wire.frames.format import message_of, read_message
from taihu.core.wire.frames.headers import At, FrameHeader, dense_values
from taihu.core.wire.frames.identity import Sender, WorkerIdentity, identity_to_metadata
from taihu.core.wire.frames.kinds import Parameters
from taihu.core.wire.frames.layouts import layout_to_message
from taihu.core.wire.links.inbox import Origin
from taihu.core.wire.links.shared_memory import SharedBuffer, buffer_from_message, buffer_to_message, open_shared
from taihu.protos import parameter_server_pb2 as pb

PARAMETER_SERVER_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServerService"].full_name
_CAME_DAMAGED: Final = "a frame came damaged"
_PATH = f"/{PARAMETER_SERVER_SERVICE}"

Values = NDArray[np.float32]


class Call(Protocol):
    """A gRPC call that is under way."""

    def cancel(self) -> bool:
        """Cut the call."""
        ...

    def is_active(self) -> bool:
        """Whether it goes on."""
        ...


class FrameStream(Call, Protocol):
    """A call that is under way, of whose answer there are frames as messages."""

    def __iter__(self) -> Iterator[bytes]:
        """The messages, as they come."""
        ...


class ServerCalls:
    """The calls to the server that `channel` reaches; `peer` names it in messages.

    `track(call)` is told of calls that wait for others, so that they can be cut; nothing is tried again once the link
    `is_abandoned`.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        job: Job,
        identity: WorkerIdentity,
        *,
        peer: str,
        track: Callable[[Call], None],
        is_abandoned: Callable[[], bool],
    ) -> None:
        self._channel = channel
        self._job = job
        self._identity = identity
        self._peer = peer
        self._track = track
        self._is_abandoned = is_abandoned

    def initialize(
        self,
        layout: Layout,
        plan: int,
        frames: Sequence[FrameSpec],
        parameters: Values,
        prepare: Callable[[FrameSpec], None] = lambda _: None,
    ) -> None:
        """Send `parameters`, all of this worker's, as the job's initial ones: of these `frames`, cut by `plan`.

        `prepare` is called with every frame before its values are read.

        Raises:
            DamagedFrameError: one came damaged.
        """
        initialize = self._channel.stream_unary(
            f"{_PATH}/Initialize", pb.InitializeRequest.SerializeToString, pb.InitializeResponse.FromString
        )
        timeout_s = self._job.exchange.timeout_s

        # gRPC may still read the requests of a call that broke while the next one begins.
        reading = Lock()
        calls = 0

        def requests(number: int) -> Iterator[pb.InitializeRequest]:
            yield pb.InitializeRequest(layout=layout_to_message(layout))
            for frame in frames:
                request = pb.InitializeRequest()
                with reading:
                    if number != calls:
                        return
                    prepare(frame)
                    header = FrameHeader(self._identity.sender, At(plan, 0).range(frame), Parameters())
                    request.frame = message_of(header, frame.views(parameters))
                yield request

        def call(_: float) -> None:
            nonlocal calls
            with reading:
                calls += 1
            metadata = identity_to_metadata(self._identity)
            under_way = initialize.future(requests(calls), timeout=timeout_s, metadata=metadata)
            self._track(under_way)
            try:
                under_way.result()
            except grpc.FutureCancelledError:
                raise ExchangeError(f"{self._peer}: the call that brings the parameters was cut") from None

        try:
            call_until_reachable(
                call,
                peer=self._peer,
                timeout_s=self._job.cluster.connect_timeout_s,
                clock=SystemClock(),
                gives_up=self._is_abandoned,
            )
        except DamagedFrameError as error:
            raise Origin(self._name, self._identity.sender, self._peer).damaged(f"{_CAME_DAMAGED}: {error}") from None

    def fetch(
        self, layout_digest: str, frames: Sequence[FrameSpec], write: Callable[[FrameSpec, Values], None]
    ) -> None:
        """Call `write` with the server's current parameters of every frame, once worker 0 has initialized them.

        Without frames, only wait until there are parameters.

        Raises:
            DamagedFrameError: one came damaged.
            ModelError: this worker's model differs from the server's.
        """
        if not self._fetched(self._fetching(layout_digest, frames), frames, write) and frames:
            raise ExchangeError(f"{self._peer}: no frame of {len(frames)} of parameters came")

    def meet(
        self,
        layout_digest: str,
        frames: Sequence[FrameSpec],
        write: Callable[[FrameSpec, Values], None],
        *,
        at_end: bool,
    ) -> Callable[[], bool]:
        """Come to a meeting of all workers; returns what waits for them, and then is as `fetch`.

        That returns False where nothing comes of it, because others have come to the end of the run instead.
        """
        call = self._fetching(layout_digest, frames, pb.MEETING_END if at_end else pb.MEETING_BETWEEN)
        return lambda: self._fetched(call, frames, write) or not frames

    def _fetching(
        self, layout_digest: str, frames: Sequence[FrameSpec], meeting: pb.Meeting.ValueType = pb.MEETING_UNSPECIFIED
    ) -> FrameStream:
        fetch: grpc.UnaryStreamMultiCallable[pb.FetchRequest, bytes] = self._channel.unary_stream(
            f"{_PATH}/Fetch", pb.FetchRequest.SerializeToString
        )
        request = pb.FetchRequest(
            job=self._job.name,
            rank=self._identity.rank,
            incarnation=self._identity.incarnation,
            layout_digest=layout_digest,
            without_values=not frames,
            meeting=meeting,
        )
        call = fetch(request, timeout=self._job.exchange.timeout_s)
        self._track(call)
        return call

    def _fetched(
        self, call: FrameStream, frames: Sequence[FrameSpec], write: Callable[[FrameSpec, Values], None]
    ) -> bool:
        """Write what comes; returns whether anything has."""
        missing = {frame.offset: frame for frame in frames}
        any_came = False
        try:
            for message in call:
                any_came = True
                header, values = self._decoded(message)
                header.expect(Parameters)
                _, _, offset, count = header.address
                frame = missing.pop(offset, None)
                if frame is None or frame.count != count:
                    raise FrameError(f"{self._peer} brought {count} parameters at offset {offset}: not asked for")
                write(frame, values)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._peer) from None
        if missing and any_came:
            raise ExchangeError(f"{self._peer}: {len(missing)} of {len(frames)} frames of parameters did not come")
        return any_came

    def _decoded(self, message: bytes) -> tuple[FrameHeader, Values]:
        sender = Sender(0)
        try:
            frame, _ = read_message(message, sender, self._peer)
            return frame.header, dense_values(frame)
        except DamagedFrameError as error:
            raise Origin(self._peer, sender, self._name).damaged(f"{_CAME_DAMAGED}: {error}") from None

    @property
    def _name(self) -> str:
        return f"worker {self._identity.rank}"

    def keep(self, step: int, *, until_durable: bool) -> Callable[[], None]:
        """Have the server keep its shard as it is after `step`.

        Returns what waits until it has copied that, or stored it.
        """
        keep = self._channel.unary_unary(
            f"{_PATH}/Keep", pb.KeepRequest.SerializeToString, pb.KeepResponse.FromString
        )
        job, rank, incarnation = self._identity.job, self._identity.rank, self._identity.incarnation
        request = pb.KeepRequest(job=job, rank=rank, incarnation=incarnation, step=step, until_durable=until_durable)
        under_way = keep.future(request, timeout=self._job.exchange.timeout_s)
        self._track(under_way)

        def wait() -> None:
            try:
                under_way.result()
            except grpc.FutureCancelledError:
                raise ExchangeError(f"{self._peer}: the call that keeps step {step} was cut") from None
            except grpc.RpcError as error:
                raise error_from_rpc(error, self._peer) from None

        return wait

    def share(self, gradients: SharedBuffer, elements: int) -> Values | None:
        """Offer this worker's gradients; the server's `elements` parameters, if both can map the other's memory."""
        share = self._channel.unary_unary(
            f"{_PATH}/Share", pb.ShareRequest.SerializeToString, pb.ShareResponse.FromString
        )
        identity = self._identity
        request = pb.ShareRequest(
            job=identity.job,
            rank=identity.rank,
            incarnation=identity.incarnation,
            gradients=buffer_to_message(gradients.descriptor),
        )
        # Memory of which the server told may be gone when it is opened: asked again, a server says what ended it.
        for is_last in (False, True):
            try:
                response = share(request, timeout=self._job.exchange.timeout_s)
                if not response.HasField("parameters"):
                    break
                return open_shared(buffer_from_message(response.parameters)).array(np.float32, elements)
            except grpc.RpcError as error:
                raise error_from_rpc(error, self._peer) from None
            except (SharedMemoryError, ValueError) as error:
                if is_last:
                    structlog.get_logger().info("no memory is shared", peer=self._peer, reason=str(error))
        return None
