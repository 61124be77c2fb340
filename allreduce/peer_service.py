"""`PeerService`: takes in what other workers send, one thread for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import grpc

from taihu.core.base.errors import MemberLostError, RunError, StaleError, TaihuError
from taihu.core.system.sockets import Socket
from taihu.core.system.threads import Condition, Lock, spawn
from taihu.core.wire.base.status import abort
from taihu.core.wire.frames.identity import WorkerIdentity, identity_from_metadata
from taihu.core.wire.frames.kinds import Farewell
from taihu.core.wire.links.connection import Connection
from taihu.core.wire.links.direct_connection import DirectListener
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import Pipe, PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe
from taihu.core.wire.links.stream_pipe import StreamPipe
from taihu.protos import connection_pb2 as pb
from taihu.protos import peer_pb2

Roster = Mapping[int, int]

# A rank opens one after the other, and may be ahead of who takes them by one.
_WAITING_FOR_RING: Final = 2
PEER_SERVICE = peer_pb2.DESCRIPTOR.services_by_name["PeerService"].full_name


class PeerServicer:
    """The methods of `PeerService`.

    Args:
        identity: of this worker; frames of other jobs are refused.
        size: number of workers.
        sink: what takes the frames of a peer, in the order in which it sent them, by that peer's thread.
        events: what is told when a peer's stream ends.
        listener: accepts connections of peers, and is closed with this.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        size: int,
        *,
        sink: Sink,
        events: Callable[[int], PipeEvents],
        listener: DirectListener,
    ) -> None:
        self._identity = identity
        self._name = f"worker {identity.rank}"
        self._size = size
        self._sink = sink
        self._events = events
        self._lock = Lock()
        self._roster: Roster | None = None
        self._roster_known = Condition(self._lock)
        self._streams: dict[int, StreamPipe] = {}
        self._connections: dict[int, SocketPipe] = {}
        # By ranks, in the order in which they were opened.
        self._for_ring: dict[int, list[Socket]] = {}
        self._listener = listener
        self._end: list[TaihuError | None] = []

    @property
    def received_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        pipes: list[Pipe] = [*self._streams.values(), *self._connections.values()]
        return sum(each.inbox.received_bytes for each in pipes)

    def register(self, server: grpc.Server) -> None:
        """Add the service to `server`; frames stay bytes (`frames.format`)."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
            "OpenConnection": grpc.unary_unary_rpc_method_handler(
                self._open_connection,
                pb.OpenConnectionRequest.FromString,
                pb.OpenConnectionResponse.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(PEER_SERVICE, handlers),))

    def admit(self, roster: Roster) -> None:
        """Let in those who send to this worker, by rank with the lives that the coordinator told; others never."""
        with self._lock:
            self._roster = roster
            self._roster_known.notify_all()

    def end(self, error: TaihuError | None) -> None:
        """End every stream, and every later one: with `error`, or well."""
        with self._lock:
            self._end.append(error)
            self._roster_known.notify_all()
            streams = list(self._streams.values())
        for stream in streams:
            stream.out.end(error)

    def close(self) -> None:
        """End what is still open, and stop listening for connections."""
        self.end(None)
        self._listener.close()
        with self._lock:
            connections, for_ring = list(self._connections.values()), list(self._for_ring.values())
            self._for_ring = {}
        for connection in connections:
            connection.close()
        for opened in for_ring:
            for each in opened:
                each.close()

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            peer = identity_from_metadata(context.invocation_metadata())
            stream = self._open(peer)
        except TaihuError as error:
            abort(context, error)
        name = f"peer-{peer.rank}"
        spawn(name, self._read, peer, requests, stream)
        try:
            yield from stream.out.messages()
        except TaihuError as error:
            abort(context, error)

    def _open(self, peer: WorkerIdentity) -> StreamPipe:
        self._check_peer(peer)
        origin, out = self._origin_of(peer), Outbox(f"worker {peer.rank}")
        sink = replace(self._sink, kinds=(*self._sink.kinds, Farewell), leave=_leave)
        stream = StreamPipe(out, Inbox(origin, sink))
        with self._lock:
            if self._end:
                out.end(self._end[0])
            if peer.rank in self._streams:
                raise StaleError(f"worker {peer.rank} has an open stream already; ranks must be unique")
            self._streams[peer.rank] = stream
        return stream

    def _check_peer(self, peer: WorkerIdentity) -> None:
        if peer.job != self._identity.job:
            raise StaleError(f"worker {peer.rank} belongs to job {peer.job!r}, this is {self._identity.job!r}")
        if not 0 <= peer.rank < self._size or peer.rank == self._identity.rank:
            raise StaleError(f"worker {peer.rank} is no peer of worker {self._identity.rank} of {self._size}")
        with self._lock:
            # A peer may have heard that all are there before this worker has.
            self._roster_known.wait_for(
                lambda: self._roster is not None or self._end, self._listener.patience.answer_s
            )
            if self._end:
                return
            if self._roster is None or self._roster.get(peer.rank) != peer.incarnation:
                raise StaleError(f"worker {peer.rank} sends nothing to {self._name}, or has another incarnation")

    def _open_connection(
        self, request: pb.OpenConnectionRequest, context: grpc.ServicerContext
    ) -> pb.OpenConnectionResponse:
        peer = WorkerIdentity(request.job, request.rank, request.incarnation)
        try:
            self._check_peer(peer)
            with self._lock:
                is_full = self._is_full(peer.rank) if request.for_ring else peer.rank in self._connections
                if self._end or is_full:
                    raise StaleError(f"worker {peer.rank} cannot open a connection now")
            take = self._keep_for_ring if request.for_ring else self._receive_directly
            port, token = self._listener.expect(peer.rank, partial(take, peer))
            return pb.OpenConnectionResponse(port=port, token=token)
        except TaihuError as error:
            abort(context, error)

    def _receive_directly(self, peer: WorkerIdentity, connection: Connection) -> None:
        with self._lock:
            if self._end or peer.rank in self._connections:
                connection.close()
                return
            out, inbox = Outbox(f"worker {peer.rank}"), Inbox(self._origin_of(peer), self._sink)
            self._connections[peer.rank] = SocketPipe(connection, out, inbox, PipeEvents(partial(self._lost, peer)))

    def _keep_for_ring(self, peer: WorkerIdentity, connection: Connection) -> None:
        with self._lock:
            if self._end or self._is_full(peer.rank) or (alone := connection.alone()) is None:
                connection.close()
                return
            self._for_ring.setdefault(peer.rank, []).append(alone)

    def _is_full(self, rank: int) -> bool:
        """Whether a peer has opened as many connections for rings as may wait to be taken."""
        return len(self._for_ring.get(rank, ())) >= _WAITING_FOR_RING

    def connection_for_ring(self, rank: int) -> Socket | None:
        """The next connection that a peer has opened for sums around a ring, if it has; the caller closes it."""
        with self._lock:
            opened = self._for_ring.get(rank)
            return opened.pop(0) if opened else None

    def _origin_of(self, peer: WorkerIdentity) -> Origin:
        return Origin(f"worker {peer.rank}", peer.sender, self._name, self._listener.patience)

    def _read(self, peer: WorkerIdentity, requests: Iterator[bytes], stream: StreamPipe) -> None:
        """Take in one peer's frames until it ends the stream, or says its last word."""
        try:
            stream.take(requests)
            # gRPC may tell of a connection that breaks as if the other side had ended the stream.
            raise _connection_broke(peer)
        except _LastWordError:
            self._left(peer)
            stream.out.end()
        except TaihuError as error:
            self._lost(peer, error)
        except grpc.RpcError:
            self._lost(peer, _connection_broke(peer))
        except BaseException as error:
            self._lost(peer, RunError(f"internal error while taking in a frame of worker {peer.rank}: {error!r}"))
            raise

    def _left(self, peer: WorkerIdentity) -> None:
        """The peer has said its last word; what it sent on another connection comes before that."""
        connection = self._connections.get(peer.rank)
        if connection is not None:
            connection.drain()
        if not self._end:
            self._events(peer.rank).ended()

    def _lost(self, peer: WorkerIdentity, error: TaihuError) -> None:
        if not self._end:
            self._events(peer.rank).lost(error)


class _LastWordError(Exception):
    """A peer has said its last word: nothing of it comes any more."""


def _leave(text: str) -> None:
    """Raise what the last word of a peer leads to."""
    raise MemberLostError(text) if text else _LastWordError


def _connection_broke(peer: WorkerIdentity) -> MemberLostError:
    return MemberLostError(f"worker {peer.rank} was lost: its connection broke")
