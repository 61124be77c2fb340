"""`ParameterServerService`: one thread that reads and one that answers for every worker, around the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import grpc

from protos import parameter_server_pb2 as pb
from ps_server.aggregator import Outcome
from ps_server.initialization import Initialization
from ps_server.store import ParameterStore
from taihu.errors import FrameError, RunError, StaleError, TaihuError
from taihu.trace import Tracer
from taihu.wire.clock import SystemClock
from taihu.wire.codec import frame_from_message, layout_from_message, read_frame
from taihu.wire.identity import WorkerIdentity, identity_from_metadata
from taihu.wire.metrics import ServerMetrics
from taihu.wire.status import abort

__all__ = ["PARAMETER_SERVER_SERVICE", "ParameterServerServicer"]

PARAMETER_SERVER_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServerService"].full_name

Outbox = SimpleQueue["bytes | TaihuError | None"]


class ParameterServerServicer:
    """The service's three methods.

    `on_lost(rank, how)` is called when a worker's exchange ends, also when it has finished.
    """

    def __init__(
        self,
        job: str,
        store: ParameterStore,
        metrics: ServerMetrics,
        *,
        on_lost: Callable[[int, str], None],
        tracer: Tracer,
    ) -> None:
        self._job = job
        self._store = store
        self._metrics = metrics
        self._on_lost = on_lost
        self._tracer = tracer
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._outboxes: dict[int, Outbox] = {}
        self._failure: TaihuError | None = None

    def register(self, server: grpc.Server) -> None:
        """Add the service to `server`; exchanged frames stay bytes, the codec reads them."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
            "Initialize": grpc.stream_unary_rpc_method_handler(
                self._initialize, pb.InitializeRequest.FromString, pb.InitializeResponse.SerializeToString
            ),
            "Fetch": grpc.unary_stream_rpc_method_handler(self._fetch, pb.FetchRequest.FromString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(PARAMETER_SERVER_SERVICE, handlers),))

    def fail(self, error: TaihuError) -> None:
        """End every open exchange, and every later one, with `error`; nobody waits for parameters any longer."""
        self._store.fail(error)
        with self._lock:
            self._failure = self._failure or error
            outboxes = list(self._outboxes.values())
        for outbox in outboxes:
            outbox.put(error)

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            identity = identity_from_metadata(context.invocation_metadata())
            outbox = self._open(identity)
        except TaihuError as error:
            abort(context, error)
        reader = threading.Thread(
            target=self._read, args=(identity, requests, outbox), name=f"read-{identity.rank}", daemon=True
        )
        reader.start()
        try:
            while (item := outbox.get()) is not None:
                if isinstance(item, TaihuError):
                    abort(context, item)
                yield item
                self._metrics.sent_bytes.inc(len(item))
        finally:
            self._close(identity.rank, outbox)

    def _open(self, identity: WorkerIdentity) -> Outbox:
        if identity.job != self._job:
            raise StaleError(f"worker {identity.rank} belongs to job {identity.job!r}, this is job {self._job!r}")
        outbox: Outbox = SimpleQueue()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if identity.rank in self._outboxes:
                raise StaleError(f"worker {identity.rank} has an open exchange already; ranks must be unique")
            self._store.admit(identity.rank, identity.incarnation)
            self._outboxes[identity.rank] = outbox
            self._metrics.workers.set(len(self._outboxes))
        return outbox

    def _close(self, rank: int, outbox: Outbox) -> None:
        with self._lock:
            if self._outboxes.get(rank) is outbox:
                del self._outboxes[rank]
            self._metrics.workers.set(len(self._outboxes))

    def _read(self, identity: WorkerIdentity, requests: Iterator[bytes], outbox: Outbox) -> None:
        """Take in one worker's frames until it closes the stream."""
        try:
            for message in requests:
                self._take(identity, message, outbox)
            # gRPC may tell of a connection that breaks as if the worker had ended the stream.
            self._on_lost(identity.rank, "its exchange ended")
            outbox.put(None)
        except TaihuError as error:
            self._metrics.rejected_frames.inc()
            outbox.put(error)
        except grpc.RpcError:
            self._on_lost(identity.rank, "its connection broke")
            outbox.put(RunError(f"the connection of worker {identity.rank} broke"))
        except BaseException as error:
            outbox.put(RunError(f"internal error while taking in a frame of worker {identity.rank}: {error!r}"))
            raise

    def _take(self, identity: WorkerIdentity, message: bytes, outbox: Outbox) -> None:
        self._metrics.received_bytes.inc(len(message))
        frame = read_frame(message)
        header = frame.header
        if header.sender != identity.rank:
            raise FrameError(f"frame of sender {header.sender} in the exchange of worker {identity.rank}")
        start = self._clock.now()
        outcome = self._store.push(frame)
        if isinstance(outcome, bytes):
            stop = self._clock.now()
            self._metrics.update_seconds.observe(stop - start)
            self._broadcast(outcome)
            self._tracer.add("update", "update", start, stop, step=header.step, group=header.group)
            self._metrics.step.set(self._store.step)
        else:
            track = f"collect from worker {identity.rank}"
            self._tracer.add(
                track, "collect", start, self._clock.now(), step=header.step, group=header.group, peer=identity.rank
            )
        if outcome is Outcome.ANSWERED:
            outbox.put(self._store.answer_again(header))
        if outcome in (Outcome.ANSWERED, Outcome.DUPLICATE):
            self._metrics.duplicate_frames.inc()

    def _broadcast(self, answer: bytes) -> None:
        with self._lock:
            for outbox in self._outboxes.values():
                outbox.put(answer)

    def _initialize(
        self, requests: Iterator[pb.InitializeRequest], context: grpc.ServicerContext
    ) -> pb.InitializeResponse:
        try:
            elements = self._store.adopt(self._receive(requests))
        except TaihuError as error:
            abort(context, error)
        self._metrics.state_bytes.set(self._store.state_bytes)
        return pb.InitializeResponse(elements=elements)

    def _receive(self, requests: Iterator[pb.InitializeRequest]) -> Initialization:
        initial: Initialization | None = None
        for request in requests:
            kind = request.WhichOneof("content")
            if kind == "layout" and initial is None:
                initial = self._store.begin(layout_from_message(request.layout))
            elif kind == "frame" and initial is not None:
                initial.write(*frame_from_message(request.frame))
            else:
                raise FrameError("Initialize: expected the layout first, then frames")
        if initial is None:
            raise FrameError("Initialize: expected the layout first, got nothing")
        return initial

    def _fetch(self, request: pb.FetchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            if request.job != self._job:
                raise StaleError(f"worker {request.rank} belongs to job {request.job!r}, this is job {self._job!r}")
            self._store.wait_until_initialized(max(0.0, (context.time_remaining() or 3600.0) - 0.2))
            self._store.check_layout(request.layout_digest)
        except TaihuError as error:
            abort(context, error)
        yield from self._store.read()
