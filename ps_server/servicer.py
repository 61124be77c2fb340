"""`ParameterServerService`: around the shard, for every worker one thread that reads and one that answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from protos import connection_pb2
from protos import parameter_server_pb2 as pb
from ps_server.aggregator import Outcome
from ps_server.answering import Answer
from ps_server.initialization import Initialization
from ps_server.shard_holder import ShardHolder
from ps_server.worker_exchange import WorkerExchange
from taihu.errors import (
    FrameError,
    GivenUpError,
    MemberLostError,
    RunError,
    SharedMemoryError,
    StaleError,
    TaihuError,
)
from taihu.job import Job
from taihu.process.preparation import give_back_freed_memory
from taihu.trace import Tracer
from taihu.wire.clock import SystemClock
from taihu.wire.codec import frame_from_message, layout_from_message, read_frame
from taihu.wire.direct_connection import DirectListener, is_open
from taihu.wire.headers import Encoding, Frame, Question
from taihu.wire.identity import WorkerIdentity, identity_from_metadata
from taihu.wire.metrics import ServerMetrics
from taihu.wire.shared_memory import buffer_from_message, buffer_to_message
from taihu.wire.status import abort

__all__ = ["PARAMETER_SERVER_SERVICE", "ParameterServerServicer"]

PARAMETER_SERVER_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServerService"].full_name


class ParameterServerServicer:
    """The service's methods.

    `on_lost(rank, how)` is called when a worker's exchange ends, also when it has finished. `listener`
    accepts connections of workers, and is closed with this.
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
    ) -> None:
        self._job = job.name
        self._workers = job.cluster.workers
        self._holder = holder
        self._metrics = metrics
        self._on_lost = on_lost
        self._tracer = tracer
        self._clock = SystemClock()
        self._log = structlog.get_logger().bind(role="server")
        self._lock = threading.Lock()
        self._exchanges: dict[int, WorkerExchange] = {}
        self._listener = listener
        self._connections: dict[int, tuple[WorkerIdentity, socket.socket]] = {}
        self._gradients: dict[WorkerIdentity, NDArray[np.float32]] = {}
        self._failure: TaihuError | None = None

    def register(self, server: grpc.Server) -> None:
        """Add the service to `server`; exchanged frames stay bytes, the codec reads them."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
            "Initialize": grpc.stream_unary_rpc_method_handler(
                self._initialize, pb.InitializeRequest.FromString, pb.InitializeResponse.SerializeToString
            ),
            "Share": grpc.unary_unary_rpc_method_handler(
                self._share, pb.ShareRequest.FromString, pb.ShareResponse.SerializeToString
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
        with self._lock:
            self._failure = self._failure or error
            exchanges = list(self._exchanges.values())
        for exchange in exchanges:
            exchange.end(error)

    def close(self) -> None:
        """Take no connections any more; those of open exchanges end with them."""
        self._listener.close()
        with self._lock:
            unused = list(self._connections.values())
            self._connections.clear()
        for _, connection in unused:
            connection.close()

    def _open_connection(
        self, request: connection_pb2.OpenConnectionRequest, context: grpc.ServicerContext
    ) -> connection_pb2.OpenConnectionResponse:
        identity = WorkerIdentity(request.job, request.rank, request.incarnation)
        try:
            self._check_worker(identity)
            port, token = self._listener.expect(identity.rank, partial(self._keep_connection, identity))
        except TaihuError as error:
            abort(context, error)
        return connection_pb2.OpenConnectionResponse(port=port, token=token)

    def _keep_connection(self, identity: WorkerIdentity, connection: socket.socket) -> None:
        """For the worker's open exchange, or for the one that it will open next."""
        with self._lock:
            exchange = self._exchanges.get(identity.rank)
            if exchange is not None and exchange.identity == identity:
                exchange.connect(connection)
                return
            former = self._connections.pop(identity.rank, None)
            self._connections[identity.rank] = (identity, connection)
        if former is not None:
            former[1].close()

    def _connection_of(self, identity: WorkerIdentity) -> socket.socket | None:
        """The connection that the worker has opened, unless it has given it up since."""
        owner, connection = self._connections.pop(identity.rank, (None, None))
        if connection is None or (owner == identity and is_open(connection)):
            return connection
        connection.close()
        return None

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            identity = identity_from_metadata(context.invocation_metadata())
            exchange = self._open(identity)
        except TaihuError as error:
            abort(context, error)
        reader = threading.Thread(
            target=self._read, args=(requests, exchange), name=f"read-{identity.rank}", daemon=True
        )
        reader.start()
        try:
            yield from exchange.messages()
        except TaihuError as error:
            abort(context, error)
        finally:
            self._close(exchange)

    def _open(self, identity: WorkerIdentity) -> WorkerExchange:
        self._check_worker(identity)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if identity.rank in self._exchanges:
                raise StaleError(f"worker {identity.rank} has an open exchange already; ranks must be unique")
            shard = self._holder.shard
            shard.admit(identity.rank, identity.incarnation)
            connection = self._connection_of(identity)
            exchange = self._exchanges[identity.rank] = WorkerExchange(
                identity, connection, lend=shard.buffers.lend, take=self._take, on_lost=self._connection_lost
            )
            self._metrics.workers.set(len(self._exchanges))
            if len(self._exchanges) == self._workers:
                shard.stop_sharing()
                give_back_freed_memory()
        return exchange

    def _close(self, exchange: WorkerExchange) -> None:
        exchange.close()
        with self._lock:
            if self._exchanges.get(exchange.identity.rank) is exchange:
                del self._exchanges[exchange.identity.rank]
            self._metrics.workers.set(len(self._exchanges))

    def _read(self, requests: Iterator[bytes], exchange: WorkerExchange) -> None:
        """Take in what comes in one worker's stream until the worker closes it."""
        rank = exchange.identity.rank
        try:
            for message in requests:
                frame = read_frame(message)
                if frame.header.sender.rank != rank:
                    raise FrameError(f"frame of {frame.header.sender.label} in the exchange of worker {rank}")
                exchange.take(frame)
            # gRPC may tell of a connection that breaks as if the worker had ended the stream.
            if exchange.end(None):
                self._on_lost(rank, "its exchange ended")
        except TaihuError as error:
            self._metrics.rejected_frames.inc()
            exchange.end(error)
        except grpc.RpcError:
            self._connection_lost(exchange, MemberLostError(f"worker {rank} was lost: its connection broke"))
        except BaseException as error:
            exchange.end(RunError(f"internal error while taking in a frame of worker {rank}: {error!r}"))
            raise

    def _connection_lost(self, exchange: WorkerExchange, error: TaihuError) -> None:
        was_open = exchange.end(error)
        if not isinstance(error, MemberLostError):
            self._metrics.rejected_frames.inc()
        elif was_open:
            self._on_lost(exchange.identity.rank, "its connection broke")

    def _take(self, exchange: WorkerExchange, frame: Frame) -> None:
        identity, header, shard = exchange.identity, frame.header, self._holder.shard
        at, group, *_ = header.address
        self._metrics.received_bytes.inc(frame.moved_bytes)
        start = self._clock.now()
        try:
            if isinstance(header.kind, Question):
                self._answer(exchange, shard.ask(header))
                return
            exchange.shares = header.encoding is Encoding.SHARED
            outcome = shard.push(frame, self._gradients.get(identity))
        except GivenUpError:
            # Another worker's frame was faster with the news.
            return
        if isinstance(outcome, Answer):
            stop = self._clock.now()
            self._metrics.updated(stop - start)
            self._broadcast(outcome)
            self._tracer.add("update", "update", start, stop, step=at.step, group=group)
            self._metrics.step.set(shard.step)
        else:
            track = f"collect from worker {identity.rank}"
            self._tracer.add(
                track, "collect", start, self._clock.now(), step=at.step, group=group, peer=identity.rank
            )
        if outcome is Outcome.ANSWERED:
            self._answer(exchange, shard.answer_again(header))
        if outcome in (Outcome.ANSWERED, Outcome.DUPLICATE):
            self._metrics.duplicate_frames.inc()

    def _broadcast(self, answer: Answer) -> None:
        """Answer everybody: all have pushed this frame."""
        with self._lock:
            exchanges = list(self._exchanges.values())
        for exchange in exchanges:
            self._answer(exchange, answer)

    def _answer(self, exchange: WorkerExchange, answer: Answer) -> None:
        """Answer one worker in its way."""
        if exchange.shares:
            answer = answer.shared
        self._metrics.sent_bytes.inc(answer.moved_bytes)
        exchange.answer(answer)

    def _share(self, request: pb.ShareRequest, context: grpc.ServicerContext) -> pb.ShareResponse:
        identity = WorkerIdentity(request.job, request.rank, request.incarnation)
        try:
            self._check_worker(identity)
            gradients, parameters = self._holder.shard.share(buffer_from_message(request.gradients))
        except SharedMemoryError as error:
            self._log.info("no memory is shared", worker=identity.rank, reason=str(error))
            return pb.ShareResponse()
        except TaihuError as error:
            abort(context, error)
        with self._lock:
            self._gradients[identity] = gradients
        return pb.ShareResponse(parameters=buffer_to_message(parameters))

    def _check_worker(self, identity: WorkerIdentity) -> None:
        self._check_job(identity.rank, identity.job)
        if not 0 <= identity.rank < self._workers:
            raise StaleError(f"worker {identity.rank}: outside the world of {self._workers} workers")

    def _check_job(self, rank: int, job: str) -> None:
        if job != self._job:
            raise StaleError(f"worker {rank} belongs to job {job!r}, this is job {self._job!r}")

    def _initialize(
        self, requests: Iterator[pb.InitializeRequest], context: grpc.ServicerContext
    ) -> pb.InitializeResponse:
        try:
            shard = self._holder.adopt(self._receive(requests))
        except TaihuError as error:
            abort(context, error)
        self._metrics.state_bytes.set(shard.state_bytes)
        return pb.InitializeResponse(elements=shard.elements)

    def _receive(self, requests: Iterator[pb.InitializeRequest]) -> Initialization:
        initial: Initialization | None = None
        for request in requests:
            kind = request.WhichOneof("content")
            if kind == "layout" and initial is None:
                initial = self._holder.begin(layout_from_message(request.layout))
            elif kind == "frame" and initial is not None:
                initial.write(*frame_from_message(request.frame))
            else:
                raise FrameError("Initialize: expected the layout first, then frames")
        if initial is None:
            raise FrameError("Initialize: expected the layout first, got nothing")
        return initial

    def _fetch(self, request: pb.FetchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            self._check_job(request.rank, request.job)
            shard = self._holder.wait(max(0.0, (context.time_remaining() or 3600.0) - 0.2))
            shard.check_layout(request.layout_digest)
        except TaihuError as error:
            abort(context, error)
        if not request.without_values:
            yield from shard.read()
