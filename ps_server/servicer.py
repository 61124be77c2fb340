"""`ParameterServerService`: its methods, around the shard and the exchanges with workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from taihu.core.base.errors import (
    DamagedFrameError,
    FrameError,
    SharedMemoryError,
    StaleError,
    TaihuError,
)
from taihu.core.chaos.points import Chaos, NoChaos, Point
from taihu.core.checkpoint.part import Part
from taihu.core.checkpoint.writer import PartWriter
from taihu.core.coordination.client.vouching import Vouch
from taihu.core.job import Job
from taihu.core.trace import Tracer
from taihu.core.wire.base.status import abort
from taihu.core.wire.frames.format import read_message
from taihu.core.wire.frames.headers import dense_values
from taihu.core.wire.frames.identity import Sender, WorkerIdentity, identity_from_metadata
from taihu.core.wire.frames.layouts import layout_from_message
from taihu.core.wire.links.direct_connection import DirectListener
from taihu.core.wire.links.shared_memory import buffer_from_message, buffer_to_message
from taihu.core.wire.serving.metrics import ServerMetrics
from taihu.core.wire.serving.server import remaining_s
from taihu.protos import connection_pb2
from taihu.protos import parameter_server_pb2 as pb
from taihu.ps_server.exchanges import Exchanges
from taihu.ps_server.server_shard import ServerShard
from taihu.ps_server.shard_holder import Initialization, ShardHolder

PARAMETER_SERVER_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServerService"].full_name


class ParameterServerServicer:
    """The service's methods.

    `on_lost(rank, how)` is called when a worker's exchange ends, also when it has finished. `listener`
    accepts connections of workers, and is closed with this; `vouch` is asked before anybody is let in who calls
    itself a worker; `writer` takes the server's parts of checkpoints; `chaos` is asked at each point.
    """

    def __init__(
        self,
        job: Job,
        holder: ShardHolder,
        metrics: ServerMetrics,
        *,
        on_lost: Callable[[int, str], None],
        tracer: Tracer,
        listener: DirectListener,
        vouch: Vouch,
        writer: PartWriter | None = None,
        chaos: Chaos | None = None,
    ) -> None:
        self._name = f"server {holder.index}"
        self._writer = writer
        self._chaos = chaos or NoChaos()
        self._job = job.name
        self._workers = job.world.workers
        self._holder = holder
        self._metrics = metrics
        self._log = structlog.get_logger().bind(role="server")
        self._listener = listener
        self._vouch = vouch
        self._exchanges = Exchanges(
            self._workers,
            holder,
            metrics,
            on_lost=on_lost,
            tracer=tracer,
            patience=job.patience,
            faults=self._chaos.frames,
        )

    def register(self, server: grpc.Server) -> None:
        """Add the service to `server`; frames stay bytes (`frames.format`)."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
            "Initialize": grpc.stream_unary_rpc_method_handler(
                self._initialize, response_serializer=pb.InitializeResponse.SerializeToString
            ),
            "Share": grpc.unary_unary_rpc_method_handler(
                self._share, pb.ShareRequest.FromString, pb.ShareResponse.SerializeToString
            ),
            "Keep": grpc.unary_unary_rpc_method_handler(
                self._keep, pb.KeepRequest.FromString, pb.KeepResponse.SerializeToString
            ),
            "OpenConnection": grpc.unary_unary_rpc_method_handler(
                self._open_connection,
                connection_pb2.OpenConnectionRequest.FromString,
                connection_pb2.OpenConnectionResponse.SerializeToString,
            ),
            "Fetch": grpc.unary_stream_rpc_method_handler(self._fetch, pb.FetchRequest.FromString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(PARAMETER_SERVER_SERVICE, handlers),))

    def fail(self, error: TaihuError) -> None:
        """End every open exchange, and every later one, with `error`; nobody waits for parameters any longer."""
        self._holder.fail(error)
        self._exchanges.fail(error)

    def close(self) -> None:
        """Take no connections any more; those of open exchanges end with them."""
        self._listener.close()
        self._exchanges.close_unused()

    def _open_connection(
        self, request: connection_pb2.OpenConnectionRequest, context: grpc.ServicerContext
    ) -> connection_pb2.OpenConnectionResponse:
        identity = WorkerIdentity(request.job, request.rank, request.incarnation)
        try:
            self._check_worker(identity)
            port, token = self._listener.expect(identity.rank, partial(self._exchanges.keep, identity))
        except TaihuError as error:
            abort(context, error)
        return connection_pb2.OpenConnectionResponse(port=port, token=token)

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        return self._exchanges.serve(requests, context, self._check_worker)

    def _share(self, request: pb.ShareRequest, context: grpc.ServicerContext) -> pb.ShareResponse:
        identity = WorkerIdentity(request.job, request.rank, request.incarnation)
        try:
            self._check_worker(identity)
            gradients, parameters = self._holder.shard.share(buffer_from_message(request.gradients))
            self._exchanges.share(identity, gradients)
        except SharedMemoryError as error:
            self._log.info("no memory is shared", worker=identity.rank, reason=str(error))
            return pb.ShareResponse()
        except TaihuError as error:
            abort(context, error)
        return pb.ShareResponse(parameters=buffer_to_message(parameters))

    def _keep(self, request: pb.KeepRequest, context: grpc.ServicerContext) -> pb.KeepResponse:
        """Copy the shard, and have it written; the worker that asks is the one that no step ends without."""
        try:
            self._check_worker(WorkerIdentity(request.job, request.rank, request.incarnation))
            shard = self._holder.shard
            if shard.step != request.step:
                raise StaleError(f"worker {request.rank} stands behind step {request.step}, this server {shard.step}")
            if self._writer is not None and shard.keeps_state:
                with self._writer.finished() if request.until_durable else nullcontext():
                    self._writer.write(request.step, lambda: Part(self._name, request.step, shard.state()))
        except TaihuError as error:
            abort(context, error)
        return pb.KeepResponse()

    def _check_worker(self, identity: WorkerIdentity) -> None:
        """Raise StaleError unless a member of the run calls, in the life that the coordinator knows."""
        if identity.job != self._job:
            raise StaleError(f"worker {identity.rank} belongs to job {identity.job!r}, this is job {self._job!r}")
        if not 0 <= identity.rank < self._workers:
            raise StaleError(f"worker {identity.rank}: outside the world of {self._workers} workers")
        self._vouch(identity)

    def _check_first_worker(self, identity: WorkerIdentity) -> None:
        self._check_worker(identity)
        if identity.rank:
            raise StaleError(f"worker {identity.rank} brings parameters; only worker 0 does so, once")

    def _initialize(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> pb.InitializeResponse:
        try:
            identity = identity_from_metadata(context.invocation_metadata())
            self._check_first_worker(identity)
            initial = self._receive(requests, identity.sender)
            self._chaos.passes(Point.INITIALIZE)
            shard = self._holder.adopt(initial)
        except TaihuError as error:
            abort(context, error)
        self._metrics.state_bytes.set(shard.state_bytes)
        return pb.InitializeResponse(elements=shard.elements)

    def _receive(self, requests: Iterator[bytes], sender: Sender) -> Initialization:
        initial: Initialization | None = None
        for message in requests:
            request = _read_request(message)
            kind = request.WhichOneof("content")
            if kind == "layout" and initial is None:
                initial = self._holder.begin(layout_from_message(request.layout))
            elif kind == "frame" and initial is not None:
                frame, _ = read_message(request.frame, sender, sender.label)
                initial.write(frame.header, dense_values(frame))
            else:
                raise FrameError("Initialize: expected the layout first, then frames")
        if initial is None:
            raise FrameError("Initialize: expected the layout first, got nothing")
        return initial

    def _fetch(self, request: pb.FetchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            self._check_worker(WorkerIdentity(request.job, request.rank, request.incarnation))
            shard = self._holder.wait(remaining_s(context))
            shard.check_layout(request.layout_digest)
            frames = self._met(request, shard, remaining_s(context)) if request.meeting else shard.read()
        except TaihuError as error:
            abort(context, error)
        if not request.without_values:
            yield from frames

    def _met(self, request: pb.FetchRequest, shard: ServerShard, timeout_s: float) -> Iterable[bytes]:
        """The frames of all parameters when all workers have come to where this one is."""
        if shard.loose is None:
            raise StaleError(f"worker {request.rank} wants to meet the others, who all are at one step")
        if request.meeting == pb.MEETING_BETWEEN:
            return self._holder.meet(request.rank, timeout_s)
        # Whoever has waited for it goes on.
        self._exchanges.send(shard.loose.finish(request.rank))
        return self._holder.end(request.rank, timeout_s)


def _read_request(message: bytes) -> pb.InitializeRequest:
    try:
        return pb.InitializeRequest.FromString(message)
    except DecodeError as error:
        raise DamagedFrameError(f"not an InitializeRequest of {len(message)} bytes: {error}") from None
