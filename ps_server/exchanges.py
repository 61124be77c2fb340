"""The exchanges with workers: what each sends, and what it is answered, until its exchange ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import (
    GivenUpError,
    MemberLostError,
    RunError,
    StaleError,
    TaihuError,
)
from taihu.core.process.programs.preparation import give_back_freed_memory
from taihu.core.system.threads import Lock, spawn
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.base.status import abort
from taihu.core.wire.frames.frame_faults import FrameFaults
from taihu.core.wire.frames.headers import Frame, FrameHeader, frame_of
from taihu.core.wire.frames.identity import WorkerIdentity, identity_from_metadata
from taihu.core.wire.frames.kinds import Encoding, Farewell, Gradients, Kind, Question, Rates
from taihu.core.wire.links.connection import Connection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe
from taihu.core.wire.links.stream_pipe import StreamPipe
from taihu.core.wire.serving.metrics import SECONDS, ServerMetrics
from taihu.ps_server.aggregator import Outcome
from taihu.ps_server.connections import UntakenConnections
from taihu.ps_server.loose_frames import Answers
from taihu.ps_server.server_shard import ServerShard
from taihu.ps_server.shard_holder import ShardHolder
from taihu.ps_server.updating import Answer


class WorkerExchange:
    """A worker's frames come in the stream or on a connection beside it, and are answered there.

    `take(exchange, frame)` gets them, and may keep them: dense ones of the connection in memory that `lend(count,
    dtype)` gave. `on_lost(exchange, error)` is called when the connection breaks or brings what it must not; messages
    to people say what `origin` does. `faults` are those of answers.

    Attributes:
        shares: whether the worker's last frame had its values in shared memory.
        stream: the pipe of the worker's call.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        origin: Origin,
        connection: Connection | None,
        *,
        lend: Callable[[int, np.dtype[Any]], NDArray[Any]],
        take: Callable[[WorkerExchange, Frame], None],
        on_lost: Callable[[WorkerExchange, TaihuError], None],
        faults: FrameFaults | None = None,
    ) -> None:
        self.identity = identity
        self.shares = False
        self._is_ended = False
        self._ending = Lock()
        self._on_lost = on_lost
        self._origin = origin
        self._faults = faults
        self._take = take
        self._lend = lend
        out = Outbox(origin.name, faults=faults)
        self.stream = StreamPipe(out, Inbox(origin, self._sink(out, (Gradients, Rates, Question, Farewell))))
        self._connection: SocketPipe | None = None
        self._closed = False
        # The answers go out where the last frame came in.
        self._answers = out
        if connection is not None:
            self._answers = self.connect(connection)

    def _sink(self, out: Outbox, kinds: tuple[type[Kind], ...]) -> Sink:
        """The receiver of the pipe whose frames go out by `out`."""

        def take(frame: Frame) -> None:
            self._answers = out
            self._take(self, frame)

        return Sink(
            kinds,
            places=lambda header: [self._lend(header.address.elements, header.value_type.dtype)],
            take=lambda header, values, _: take(frame_of(header, values[0].view(np.uint8))),
            take_frame=take,
        )

    @property
    def sent_directly(self) -> int:
        """Bytes that were sent beside the stream so far."""
        return self._connection.out.sent_bytes if self._connection is not None else 0

    def connect(self, connection: Connection) -> Outbox:
        """Take frames on `connection`, too; a former one is cut. Returns where frames go out by it."""
        origin = self._origin
        lost = partial(self._on_lost, self)
        ended = partial(lost, MemberLostError(f"{origin.name} was lost: its connection ended"))
        out = Outbox(origin.name, faults=self._faults)
        inbox = Inbox(origin, self._sink(out, (Gradients, Rates, Question)))
        former = self._connection
        self._connection = SocketPipe(connection, out, inbox, PipeEvents(lost, ended))
        if former is not None:
            former.close()
        if self._closed:
            self._connection.close()
        return out

    def answer(self, answer: Answer) -> None:
        """Queue an answer on the pipe by which the worker's last frame came."""
        # A worker's next frames may wait for an answer without values: it does not queue behind parameters.
        self._answers.put(answer, urgent=not answer.pieces)

    def end(self, error: TaihuError | None) -> bool:
        """End the stream after what is queued, with `error` or well; returns whether this was what ended it."""
        with self._ending:
            first, self._is_ended = not self._is_ended, True
        self.stream.out.end(error)
        return first

    def close(self) -> None:
        """Cut the connection. A worker that leaves in good order ends its stream first, which leads here."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()


class Exchanges:
    """The open exchanges of `workers` workers: what they bring goes to the shard, and its answers to them.

    Any thread may call; `read` is called by one for each stream, and connections have one of their own.
    `on_lost(rank, how)` is called when a worker's exchange ends, also when it has finished. `faults` are those of
    answers.
    """

    def __init__(
        self,
        workers: int,
        holder: ShardHolder,
        metrics: ServerMetrics,
        *,
        on_lost: Callable[[int, str], None],
        tracer: Tracer,
        patience: Patience,
        faults: FrameFaults | None = None,
    ) -> None:
        self._patience = patience
        self._faults = faults
        self._workers = workers
        self._holder = holder
        self._metrics = metrics
        self._on_lost = on_lost
        self._tracer = tracer
        self._clock = SystemClock()
        self._lock = Lock()
        self._exchanges: dict[int, WorkerExchange] = {}
        self._untaken = UntakenConnections()
        self._gradients: dict[WorkerIdentity, NDArray[np.float32]] = {}
        self._failure: TaihuError | None = None

    def serve(
        self, requests: Iterator[bytes], context: grpc.ServicerContext, check: Callable[[WorkerIdentity], None]
    ) -> Iterator[bytes]:
        """The messages of one worker's stream, from its beginning to its end; `check` refuses who is no member."""
        try:
            identity = identity_from_metadata(context.invocation_metadata())
            check(identity)
            exchange = self.open(identity)
        except TaihuError as error:
            abort(context, error)
        name = f"read-{identity.rank}"
        spawn(name, self.read, requests, exchange)
        try:
            yield from exchange.stream.out.messages()
        except TaihuError as error:
            abort(context, error)
        finally:
            self.forget(exchange)

    def open(self, identity: WorkerIdentity) -> WorkerExchange:
        """Begin an exchange.

        Raises:
            StaleError: the rank has one, or there are no parameters yet.
            TaihuError: what `fail` was told.
        """
        with self._lock:
            self._raise_failure()
            if identity.rank in self._exchanges:
                raise StaleError(f"worker {identity.rank} has an open exchange already; ranks must be unique")
            shard = self._holder.shard
            shard.admit(identity.rank, identity.incarnation)
            connection = self._untaken.take(identity)
            exchange = self._exchanges[identity.rank] = WorkerExchange(
                identity,
                Origin(f"worker {identity.rank}", identity.sender, f"server {self._holder.index}", self._patience),
                connection,
                lend=shard.buffers.lend,
                take=partial(self._take, shard),
                on_lost=self._connection_lost,
                faults=self._faults,
            )
            self._metrics.workers.set(len(self._exchanges))
            if len(self._exchanges) == self._workers:
                shard.stop_sharing()
                give_back_freed_memory()
        return exchange

    def forget(self, exchange: WorkerExchange) -> None:
        """The exchange's stream ends: its worker may open another one. `read` cuts the connection after that."""
        with self._lock:
            if self._exchanges.get(exchange.identity.rank) is exchange:
                del self._exchanges[exchange.identity.rank]
            self._metrics.workers.set(len(self._exchanges))

    def share(self, identity: WorkerIdentity, gradients: NDArray[np.float32]) -> None:
        """Find the values of the worker's shared frames in `gradients`; raises what `fail` was told."""
        with self._lock:
            self._raise_failure()
            self._gradients[identity] = gradients

    def keep(self, identity: WorkerIdentity, connection: Connection) -> None:
        """Give a connection to the worker's open exchange, or keep it for the one that it will open next."""
        with self._lock:
            exchange = self._exchanges.get(identity.rank)
            if exchange is not None and exchange.identity == identity and not self._untaken.closed:
                exchange.connect(connection)
            else:
                self._untaken.keep(identity, connection)

    def fail(self, error: TaihuError) -> None:
        """End every open exchange, and every later one, with `error`."""
        with self._lock:
            self._failure = self._failure or error
            exchanges = list(self._exchanges.values())
        for exchange in exchanges:
            exchange.end(error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close_unused(self) -> None:
        """Close connections that no exchange has taken, and whatever comes later."""
        with self._lock:
            self._untaken.close()

    def read(self, requests: Iterator[bytes], exchange: WorkerExchange) -> None:
        """Take in what comes in one worker's stream until it has ended, and cut the connection beside it.

        A worker whose connection ended before its stream could not tell why.
        """
        rank = exchange.identity.rank
        try:
            exchange.stream.take(requests)
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
        finally:
            _until_it_has_ended(requests)
            exchange.close()

    def _connection_lost(self, exchange: WorkerExchange, error: TaihuError) -> None:
        if not isinstance(error, MemberLostError):
            exchange.end(error)
            self._metrics.rejected_frames.inc()
        # It is the worker itself that hears this, if it lives: it is told who has lost it.
        elif exchange.end(MemberLostError(f"server {self._holder.index}: {error}")):
            self._on_lost(exchange.identity.rank, "its connection broke")

    def _take(self, shard: ServerShard, exchange: WorkerExchange, frame: Frame) -> None:
        header, counts = frame.header, self._metrics.frames
        moved = frame.moved_bytes
        with counts.lock:
            counts.received_bytes += moved
        start = self._clock.now()
        try:
            if isinstance(header.kind, Question):
                self._answer(shard.ask(header), (exchange,))
                return
            if isinstance(header.kind, Rates):
                shard.take_rates(frame)
                return
            if isinstance(header.kind, Farewell):
                # In good order, which ends the exchange of those who wait for it.
                shard.leave(exchange.identity.rank)
                return
            exchange.shares = header.encoding is Encoding.SHARED
            outcome = shard.push(frame, self._gradients.get(exchange.identity))
        except GivenUpError:
            # Another worker's frame was faster with the news.
            return
        except MemberLostError as error:
            # Nobody can end this step, whoever pushes next.
            self.fail(error)
            return
        has_updated = isinstance(outcome, Answer) or (isinstance(outcome, Answers) and outcome.has_updated)
        if has_updated:
            seconds = self._clock.now() - start
            with counts.lock:
                counts.updates[bisect_left(SECONDS, seconds)] += 1
                counts.update_seconds += seconds
                counts.recent.append(seconds)
                counts.step = shard.step
        if isinstance(outcome, Answer):
            with self._lock:
                exchanges = tuple(self._exchanges.values())
            self._answer(outcome, exchanges)
        elif isinstance(outcome, Answers):
            self.send(outcome.to)
        if self._tracer.enabled:
            self._trace(header, start, has_updated=has_updated)
        if outcome is Outcome.ANSWERED:
            self._answer(shard.answer_again(header), (exchange,))
        if outcome is Outcome.ANSWERED or outcome is Outcome.DUPLICATE:
            self._metrics.duplicate_frames.inc()

    def send(self, answers: Iterable[tuple[int, Answer]]) -> None:
        """Answer workers, each by its rank and in its own way, as far as they are there."""
        for rank, answer in answers:
            with self._lock:
                exchange = self._exchanges.get(rank)
            if exchange is not None:
                self._answer(answer, (exchange,))

    def _answer(self, answer: Answer, exchanges: Iterable[WorkerExchange]) -> None:
        """Answer each of these workers in its way: all, where they have pushed this frame."""
        moved, counts = answer.moved_bytes, self._metrics.frames
        for exchange in exchanges:
            with counts.lock:
                counts.sent_bytes += moved
            exchange.answer(answer.shared if exchange.shares else answer)

    def _trace(self, header: FrameHeader, start_s: float, *, has_updated: bool) -> None:
        """A frame has been taken in, which may have been the last of a sum."""
        (at, group, *_), rank = header.address, header.sender.rank
        stop_s = self._clock.now()
        if has_updated:
            self._tracer.add("update", "update", start_s, stop_s, step=at.step, group=group)
        else:
            track = f"collect from worker {rank}"
            self._tracer.add(track, "collect", start_s, stop_s, step=at.step, group=group, peer=rank)


def _until_it_has_ended(requests: Iterator[bytes]) -> None:
    """Drop what still comes in a stream, which gRPC ends once its status has been sent."""
    with suppress(grpc.RpcError):
        for _ in requests:
            pass
