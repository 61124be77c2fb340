"""Collective operations between workers: what arrives is taken to the operation that it belongs to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc
from numpy.typing import NDArray

from allreduce.fence import Fence
from allreduce.parts.mesh import PartsMesh, PartsOperation, Transfer
from allreduce.peer_service import PEER_SERVICE, PeerEvents, PeerServicer
from allreduce.ring.operation import Operation, OperationKey
from allreduce.ring.schedule import Broadcast, Ring, Segment, buffer_layout, cut_chunks
from allreduce.same_host.agreement import share_with_all
from allreduce.same_host.path import SameHostPath
from allreduce.sparse.exchange import SparseExchange
from allreduce.sparse.mesh import SparseMesh, SparseOperation
from taihu.errors import ConfigError, ExchangeError, MemberLostError, StaleError, TaihuError
from taihu.planner.groups import Group
from taihu.settings import Transport
from taihu.wire.direct_connection import DirectListener
from taihu.wire.frame_link import Carrier, FrameLink, LinkEnd, LinkEvents
from taihu.wire.headers import (
    Address,
    At,
    Encoding,
    Farewell,
    Frame,
    FrameHeader,
    Part,
    RingSegment,
    Sender,
    SparseMessage,
    ValueType,
)
from taihu.wire.identity import WorkerIdentity
from taihu.wire.shared_memory import SharedBuffer
from taihu.wire.sink import Origin, Sink

__all__ = ["Communicator"]

_LOOK_AGAIN_S = 0.1


class Communicator:
    """Rank `identity.rank`'s end of all operations between `size` workers; a context manager.

    `register` comes first, `connect` when all peers serve. All ranks start the same operations under the same keys;
    frames of an operation that this rank has not started yet wait for it. Operations may be started by any thread.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        size: int,
        *,
        timeout_s: float = 600.0,
        listener: DirectListener | None = None,
    ) -> None:
        self.rank = identity.rank
        self.size = size
        self._identity = identity
        self._timeout_s = timeout_s
        sink = Sink(
            (RingSegment, Part, SparseMessage), places=self._places, take=self._take, take_frame=self._take_frame
        )
        events = PeerEvents(self.fail, self._sender_left)
        listener = listener or DirectListener()
        self._servicer = PeerServicer(identity, size, sink=sink, events=events, listener=listener)
        self._right: FrameLink | None = None
        self._links: dict[int, FrameLink] = {}
        self._sparse = SparseMesh(identity, self._send_to)
        self._parts = PartsMesh(identity, self._send_to, self._after_sent_to)
        self._changed = threading.Condition()
        self._failure: TaihuError | None = None
        self._told_of_failure: list[Callable[[BaseException], None]] = []
        # Guards the operations and their buffers, but not `finished`.
        self._lock = threading.RLock()
        self._fence = Fence()
        # Frames that are being received into buffers, and operations whose end is being told.
        self._writing = 0
        self._quiet = threading.Condition(self._lock)
        self._running: dict[OperationKey, Operation] = {}
        self._early: dict[OperationKey, list[tuple[FrameHeader, NDArray[Any]]]] = {}
        self._calls = 0
        self._incomplete = False
        self._same_host: SameHostPath | None = None

    @property
    def sent_bytes(self) -> int:
        """Bytes sent so far, headers included."""
        return sum(link.sent_bytes for link in self._links.values())

    @property
    def received_bytes(self) -> int:
        """Bytes received so far, headers included."""
        return self._servicer.received_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self.fail(value)
        self.close()

    def register(self, server: grpc.Server) -> None:
        """Add the service that peers send to; the server is started afterwards."""
        self._servicer.register(server)

    def connect(self, addresses: Sequence[str], *, mesh: bool = False, carrier: Carrier = "tcp") -> None:
        """Open the way to the right neighbour; `addresses` are those of all workers by rank.

        With `mesh` the ways to all others too, which sparse operations and transfers of parts need. Frames take
        `carrier`, until `carry`.
        """
        right = (self.rank + 1) % self.size
        for rank in range(self.size):
            if rank != self.rank and (mesh or rank == right):
                self._links[rank] = self._open_link(rank, addresses[rank])
        self._right = self._links.get(right)
        self.prepare(carrier)
        self.carry(carrier)

    def _open_link(self, rank: int, address: str) -> FrameLink:
        origin = Origin(f"worker {rank} at {address}", Sender(self._identity.job, 0, rank))
        events = LinkEvents(self.fail, self._receiver_left)
        link = FrameLink(LinkEnd(PEER_SERVICE, address, origin), self._identity, _NOTHING, events)
        link.open()
        return link

    def prepare(self, carrier: Carrier, *, wait: bool = True) -> None:
        """Open what `carry` needs; where that cannot be, and until it is there, frames stay in gRPC.

        With `wait` it is there then, or cannot be.
        """
        for link in self._links.values():
            link.prepare(carrier)
        for link in self._links.values() if wait else ():
            link.settle()

    def carry(self, carrier: Carrier) -> None:
        """Send frames by `carrier` from now on; what is under way arrives as it was sent."""
        with self._lock:
            for link in self._links.values():
                link.carry(carrier)

    @property
    def path(self) -> str:
        """`same-host` where shared values are summed in place, else what they take (`FrameLink.path`)."""
        if self._same_host is not None:
            return "same-host"
        return " and ".join(sorted({link.path for link in self._links.values()})) or "none"

    def choose_path(self, path: Transport, buffer: SharedBuffer | None) -> None:
        """Sum values in `buffer` in shared memory if `path` allows it and all ranks can; see `share`.

        Raises:
            ConfigError: they cannot, and `path` is `same-host`.
        """
        shared = path in ("auto", "same-host") and self.share(buffer)
        if path == "same-host" and not shared and self.size > 1:
            raise ConfigError(
                "exchange.transport 'same-host': the workers do not all share one machine's /dev/shm, or it is too "
                "small; use auto or tcp"
            )

    def share(self, buffer: SharedBuffer | None) -> bool:
        """Sum values that lie in `buffer` in shared memory from now on, if all ranks can; all ranks call this once.

        Without a buffer this rank says that it cannot. Whether it succeeds or not, the buffer's name is gone after.
        """
        try:
            opened = share_with_all(self, self.rank, self.size, buffer) if self.size > 1 else None
        finally:
            if buffer is not None:
                buffer.unlink()
        if opened is not None:
            self._same_host = SameHostPath(
                self.rank,
                opened,
                is_failed=lambda: self._failure,
                is_left=lambda: _neighbour_left() if self._incomplete else None,
                on_finished=self._finish,
                on_failed=self.fail,
            )
        return self._same_host is not None

    def start(self, operation: Operation) -> None:
        """Take part in an operation; `wait` returns when it is finished. After a failure nothing is started."""
        if self._failure is not None:
            return
        try:
            with self._lock:
                if self._same_host is not None and self._same_host.takes(operation):
                    self._admit(operation.key)
                    self._same_host.start(operation)
                    return
                self._start(operation)
        except TaihuError as error:
            self.fail(error)

    def start_sparse(self, operation: SparseOperation, exchange: SparseExchange) -> None:
        """Take part in a sparse operation, between workers that `connect` has joined to a mesh; see `start`."""
        if self._failure is not None:
            return
        try:
            with self._lock:
                self._admit(operation.key)
                done = self._sparse.begin(operation, exchange)
            if done:
                self._finish(operation)
        except TaihuError as error:
            self.fail(error)

    def start_parts(
        self,
        transfer: Transfer,
        value_type: ValueType = ValueType.FP32,
        *,
        urgent: bool = False,
        on_finished: Callable[[], None] = lambda: None,
    ) -> PartsOperation:
        """Take part in a transfer, between workers that `connect` has joined to a mesh; see `start` and `wait`.

        All ranks start the same transfers in the same order; any number of them may be under way, and urgent ones
        overtake others. Until it is finished, its arrays belong to it.
        """
        operation = PartsOperation(transfer, value_type, urgent, on_finished)
        if self._failure is not None:
            return operation
        try:
            with self._lock:
                self._admit(None)
                self._parts.begin(operation, self._parts_sent)
                self._end_parts(operation)
        except TaihuError as error:
            self.fail(error)
        return operation

    def wait(self, operation: Operation | SparseOperation | PartsOperation, timeout_s: float | None = None) -> None:
        """Return when the result is in the buffer, which then belongs to the caller again.

        Raises:
            ExchangeError: it is not finished within `timeout_s`, or the communicator's own.
            TaihuError: what `fail` was told.
        """
        at, group, _ = operation.key
        if at.attempt < self._fence.attempt and not operation.finished:
            raise StaleError(f"operation {group} of step {at.step}, attempt {at.attempt}, was given up")
        self.wait_until(lambda: operation.finished, lambda: f"operation {group} of step {at.step}", timeout_s)

    def wait_until(
        self, predicate: Callable[[], bool], what: Callable[[], str], timeout_s: float | None = None
    ) -> None:
        """Return when `predicate` is true, which the end of an operation makes it; raises as `wait` does.

        `what` says what did not come in time.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        with self._changed:
            attempt = self._fence.attempt
            self._changed.wait_for(lambda: predicate() or self._failure or self._fence.attempt != attempt, timeout_s)
            if self._failure is not None:
                raise self._failure
            if self._fence.attempt != attempt:
                raise StaleError(f"{what()} was given up: the run goes back, attempt {self._fence.attempt}")
            if not predicate():
                raise ExchangeError(
                    f"{what()} did not end within {timeout_s:g} s; another worker is slow or stuck, or raise "
                    "exchange.timeout_s"
                )

    def allreduce(self, values: NDArray[Any], value_type: ValueType = ValueType.FP32, *, mean: bool = False) -> None:
        """Replace `values` on every rank by the sum or mean over all ranks; the same bits everywhere.

        Args:
            values: shape (n,), of the type's dtype, contiguous and writable; n is the same on all ranks.
            value_type: 16-bit types are codes of `kernels.half`; every sum of two values is rounded.
            mean: multiply the sums by 1 / size.

        Raises:
            TaihuError: see `wait`.
        """
        schedule = Ring(self.rank, cut_chunks(buffer_layout(len(values)), Group(0, 0), self.size, values.itemsize))
        scale = 1.0 / self.size if mean else 1.0
        self._call(Operation(self._next_key(), values, value_type, schedule, scale=scale))

    def broadcast(self, values: NDArray[Any], value_type: ValueType = ValueType.FP32, *, root: int = 0) -> None:
        """Replace `values` (shape (n,), as in `allreduce`) on every rank by those of rank `root`."""
        frames = cut_chunks(buffer_layout(len(values)), Group(0, 0), 1, values.itemsize)[0]
        schedule = Broadcast(self.rank, self.size, frames, root)
        self._call(Operation(self._next_key(), values, value_type, schedule))

    def fail(self, error: BaseException) -> None:
        """Make every present and later `wait` raise `error`, and tell the neighbours why."""
        with self._changed:
            if self._failure is not None:
                return
            self._failure = error if isinstance(error, TaihuError) else ExchangeError(str(error) or repr(error))
            self._changed.notify_all()
        with self._quiet:
            self._quiet.notify_all()
        for tell in self._told_of_failure:
            tell(self._failure)
        self._servicer.end(self._failure)
        for link in self._links.values():
            link.fail(self._farewell(str(self._failure)))

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Have `tell` called with what ends all operations, by any thread; at once if that has happened."""
        with self._changed:
            self._told_of_failure.append(tell)
            failure = self._failure
        if failure is not None:
            tell(failure)

    def abort(self, attempt: int) -> None:
        """Give up everything under way, for the run goes back: it is attempt `attempt` now, on every rank in the end.

        Whoever waits for what was given up raises StaleError. Frames of attempts before this one are dropped from now
        on; calls and transfers are counted anew. Returns when buffers are not read or written any more, so that no
        operation's callback may call this: sums in shared memory are given up by all ranks together, which it waits
        for.

        Raises:
            StaleError: the attempt is not a higher one.
            TaihuError: what `fail` was told.
        """
        with self._lock:
            self._fence.abort(attempt)
            self._calls = 0
            self._running.clear()
            self._early = {key: frames for key, frames in self._early.items() if key.at.attempt >= attempt}
            self._sparse.abort(attempt)
            self._parts.abort(attempt)
        with self._changed:
            self._changed.notify_all()
        if self._same_host is not None:
            self._same_host.abort(attempt)
        with self._quiet:
            self._quiet.wait_for(lambda: not self._writing or self._failure is not None)
        for link in self._links.values():
            read = threading.Event()
            link.after(read.set)
            while self._failure is None and not read.wait(_LOOK_AGAIN_S):
                pass
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Leave in good order; nothing may be under way."""
        if self._same_host is not None:
            self._same_host.close()
        for link in self._links.values():
            link.close(self._farewell())
        self._servicer.close()

    def _call(self, operation: Operation) -> None:
        self.start(operation)
        self.wait(operation)

    def _next_key(self) -> OperationKey:
        self._calls += 1
        return OperationKey(At(0, 0, self._fence.attempt), self._calls)

    def _receiver_left(self) -> None:
        """Someone sent to has left in good order: it has all it needs, and nothing new can begin."""
        self._incomplete = True

    def _sender_left(self, rank: int) -> None:
        """Someone who sends to this rank has left in good order: nothing may wait for it."""
        with self._lock:
            self._incomplete = True
            is_left = rank == (self.rank - 1) % self.size
            waiting = (is_left and bool(self._running)) or self._sparse.awaits(rank) or self._parts.awaits(rank)
        if waiting:
            self.fail(_neighbour_left())

    def _admit(self, key: OperationKey | None) -> None:
        """Raise unless an operation can begin; one without a key belongs to the present attempt."""
        if self._incomplete:
            raise _neighbour_left()
        if key is not None:
            self._fence.begin(key)

    def _start(self, operation: Operation) -> None:
        self._admit(operation.key)
        self._running[operation.key] = operation
        segments = operation.schedule.first_segments()
        if self._right is None:
            operation.finish_alone([segment.frame for segment in segments])
        else:
            for segment in segments:
                self._send(operation, segment)
        self._end_if_arrived(operation)
        for header, values in self._early.pop(operation.key, ()):
            self._advance(operation, header, values, in_place=False)

    def _places(self, header: FrameHeader) -> Sequence[NDArray[Any]] | None:
        with self._lock:
            if not self._fence.admits(header):
                return None
            if isinstance(header.kind, Part):
                places = self._parts.places(header)
            else:
                operation = self._running.get(OperationKey.of(header))
                places = operation.places(header) if operation is not None else None
            self._writing += places is not None
        return places

    def _take(self, header: FrameHeader, received: Sequence[NDArray[Any]], in_place: bool) -> None:
        with self._lock:
            if in_place:
                self._written()
            if self._failure is not None or not self._fence.admits(header):
                return
            if isinstance(header.kind, Part):
                self._take_part(header, None if in_place else received[0])
                return
            key, values = OperationKey.of(header), received[0]
            operation = self._running.get(key)
            if operation is None:
                self._early.setdefault(key, []).append((header, values.copy()))
            else:
                self._advance(operation, header, values, in_place=in_place)

    def _take_part(self, header: FrameHeader, values: NDArray[Any] | None) -> None:
        operation = self._parts.take(header, values)
        if operation is not None:
            self._end_parts(operation)

    def _written(self) -> None:
        self._writing -= 1
        self._quiet.notify_all()

    def _parts_sent(self, operation: PartsOperation) -> None:
        """Everything for one rank has been read; called by the thread that sends to it."""
        with self._lock:
            operation.unsent -= 1
            self._end_parts(operation)

    def _end_parts(self, operation: PartsOperation) -> None:
        if self._parts.end(operation):
            self._finish(operation)

    def _take_frame(self, frame: Frame) -> None:
        with self._lock:
            taken = self._failure is None and self._fence.admits(frame.header)
            operation = self._sparse.take(frame) if taken else None
        if operation is not None:
            self._finish(operation)

    def _send_to(
        self, rank: int, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False
    ) -> None:
        self._links[rank].send(header, pieces, urgent=urgent)

    def _after_sent_to(self, rank: int, callback: Callable[[], None], *, urgent: bool) -> None:
        self._links[rank].after(callback, urgent=urgent)

    def _advance(self, operation: Operation, header: FrameHeader, values: NDArray[Any], *, in_place: bool) -> None:
        forward = operation.take(header, values, in_place=in_place)
        if forward is not None:
            self._send(operation, forward)
        self._end_if_arrived(operation)

    def _end_if_arrived(self, operation: Operation) -> None:
        if not operation.schedule.done:
            return
        del self._running[operation.key]
        if self._right is None:
            self._finish(operation)
        else:
            self._right.after(partial(self._finish, operation))

    def _send(self, operation: Operation, segment: Segment) -> None:
        assert self._right is not None  # noqa: S101
        values = operation.views(segment)
        operation.sent_bytes += sum(view.nbytes for view in values)
        key, frame = operation.key, segment.frame
        kind = RingSegment(segment.hop, key.number)
        address = key.range(frame.offset, frame.count)
        self._right.send(FrameHeader(self._identity.sender, address, kind, value_type=operation.value_type), values)

    def _finish(self, operation: Operation | SparseOperation | PartsOperation) -> None:
        with self._lock:
            if operation.key.at.attempt != self._fence.attempt:
                return
            self._writing += 1
        try:
            if isinstance(operation, SparseOperation):
                operation.on_finished(operation)
            else:
                operation.on_finished()
        finally:
            with self._lock:
                self._written()
        with self._changed:
            operation.finished = True
            self._changed.notify_all()

    def _farewell(self, failure: str = "") -> FrameHeader:
        nowhere = Address(At(0, 0, self._fence.attempt), 0, 0, 0)
        return FrameHeader(self._identity.sender, nowhere, Farewell(failure), Encoding.NONE)


_NOTHING = Sink((), places=lambda _: None, take=lambda *_: None, take_frame=lambda _: None)
"""Between workers nothing is answered."""


def _neighbour_left() -> MemberLostError:
    return MemberLostError("a neighbour on the ring has left the run while this worker goes on")
