"""The operations under way on one rank: frames find the one that they belong to, and what it sends on goes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.fence import EARLY_BYTES, EarlyFrames, Fence, Held
from taihu.allreduce.order.operation import Operation, OperationKey, Segment
from taihu.allreduce.parts.mesh import PartsMesh, PartsOperation
from taihu.allreduce.parts.messages import MESSAGES, MessagesMesh, Receive
from taihu.allreduce.ring.kernel_path import KernelRingPath
from taihu.allreduce.same_host.path import SameHostPath
from taihu.allreduce.sparse.exchange import SparseExchange
from taihu.allreduce.sparse.mesh import SparseCoding, SparseFrames, SparseMesh, SparseOperation
from taihu.core.base.errors import MemberLostError
from taihu.core.system.threads import Condition, RLock
from taihu.core.wire.frames.headers import Frame, FrameHeader
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.frames.kinds import ActivationPart, RingSegment, SparseMessage
from taihu.core.wire.links.inbox import Sink
from taihu.core.wire.links.pipe import Carrier, FrameWay

AnyOperation = Operation | SparseOperation | PartsOperation


class Operations:
    """Operations that have been started and not finished, and early frames of others; any thread may call.

    Args:
        identity: of this worker.
        size: number of workers.
        links: the ways to others by rank, the right neighbour's among them; filled before anything is started.
        is_failed: whether all operations have ended by a failure: nothing is taken in then.
        on_end: called with every operation that is finished.
        early_bytes: the most bytes of one sender that wait for operations that have not begun here. Nothing more is
            read of its frames then, until these begin.
        coding: of sparse messages; without it frames hold them.

    Attributes:
        paths: those that take sums off the ring of frames, once there are such: in shared memory, or by a kernel.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        size: int,
        links: Mapping[int, FrameWay],
        *,
        is_failed: Callable[[], bool],
        on_end: Callable[[AnyOperation], None],
        early_bytes: int = EARLY_BYTES,
        coding: SparseCoding | None = None,
    ) -> None:
        self._identity = identity
        self._left_neighbour, self._right_neighbour = (identity.rank - 1) % size, (identity.rank + 1) % size
        self._links = links
        self._is_failed = is_failed
        self._on_end = on_end
        self._held = Held()
        self._sparse = SparseMesh(coding or SparseFrames(identity, self._send_to), self._held)
        self._parts = PartsMesh(identity, self._send_to, self._after_sent_to, self._held)
        self._messages = MessagesMesh(identity, self._send_to, self._after_sent_by, self._held)
        # Guards the operations and their buffers, but not `finished`.
        self._lock = RLock()
        self._fence = Fence(self._left_neighbour)
        # Frames that are being received into buffers, and operations whose end is being told.
        self._writing = 0
        self._quiet = Condition(self._lock)
        self._running: dict[OperationKey, Operation] = {}
        self._early: EarlyFrames[tuple[FrameHeader, NDArray[Any]]] = EarlyFrames(self._held)
        self._early_bytes = early_bytes
        self._closed = False
        self._incomplete = False
        # Those who have said their last word, and those who take nothing any more.
        self._others = frozenset(range(size)) - {identity.rank}
        self._gone: set[int] = set()
        self._deaf: set[int] = set()
        self._carrier: Carrier = "grpc"
        self.paths: list[SameHostPath | KernelRingPath] = []
        self.sink = Sink(
            (RingSegment, ActivationPart, SparseMessage),
            places=self._places,
            take=self._take,
            take_frame=self._take_frame,
        )
        """Takes the frames of others."""

    @property
    def attempt(self) -> int:
        """The present attempt, see `Fence`."""
        return self._fence.attempt

    @property
    def transfers(self) -> int:
        """The number of transfers that have begun in this attempt."""
        return self._parts.begun

    def start(self, operation: Operation) -> None:
        """Begin, or hand to the thread that sums in shared memory.

        Raises:
            MemberLostError: a worker has left the run.
            StaleError: it is of another attempt.
            FrameError: an early frame does not belong to it.
        """
        with self._lock:
            path = self._path_of(operation)
            if path is not None:
                self._admit(operation.key)
                path.start(operation)
                return
            self._fence.begin(operation.key)
            self._start(operation)
            # Who has left has sent all that it had to: what is complete by that needs nobody.
            if operation.key in self._running:
                self._expect_all()

    def _path_of(self, operation: Operation) -> SameHostPath | KernelRingPath | None:
        """The path off the ring of frames; a kernel's is one only while frames take connections of their own, too."""
        usable = (path for path in self.paths if isinstance(path, SameHostPath) or self._carrier == "tcp")
        return next((path for path in usable if path.takes(operation)), None)

    def start_sparse(self, operation: SparseOperation, exchange: SparseExchange) -> None:
        """Begin; raises as `start` does."""
        with self._lock:
            self._admit(operation.key)
            done = self._sparse.begin(operation, exchange)
            self._quiet.notify_all()
        if done:
            self.finish(operation)

    def start_parts(self, operation: PartsOperation) -> None:
        """Begin, in the present attempt; raises as `start` does."""
        with self._lock:
            self._parts.begin(operation, self._parts_sent)
            self._quiet.notify_all()
            sends = operation.transfer.sends
            is_needed = any(operation.expected.get(rank) for rank in self._gone) or any(
                any(map(len, sends[rank])) for rank in self._gone | self._deaf
            )
            self._end_parts(operation)
            if is_needed:
                self._expect_all()

    def send_message(self, rank: int, tag: int, values: NDArray[np.uint16], on_sent: Callable[[], None]) -> None:
        """Send a message, see `MessagesMesh.send`; raises MemberLostError when `rank` has left the run."""
        with self._lock:
            self._expect(rank)
            self._messages.send(rank, tag, values, on_sent)

    def receive_message(self, receive: Receive) -> None:
        """Wait for a message.

        Raises:
            MemberLostError: its sender has left the run.
            FrameError: the message has arrived, and has another size.
        """
        with self._lock:
            done = self._messages.post(receive)
            self._quiet.notify_all()
            if not done:
                self._expect(receive.sender)
        if done:
            receive.on_finished()

    def carry(self, carrier: Carrier) -> None:
        """Send frames by `carrier` from now on; what is under way arrives as it was sent."""
        with self._lock:
            self._carrier = carrier
            for link in self._links.values():
                link.carry(carrier)

    def end(self, rank: int) -> None:
        """One to whom this rank sends has left in good order: it has all it needs."""
        with self._lock:
            self._incomplete = True
            self._deaf.add(rank)

    def leave(self, rank: int) -> bool:
        """One who sends to this rank has left in good order; returns whether something waits for it.

        Nothing new can begin that needs it.
        """
        with self._lock:
            self._incomplete = True
            self._gone.add(rank)
            is_left = rank == self._left_neighbour
            meshes = (self._sparse, self._parts, self._messages)
            awaits_anybody = self._gone == self._others and self._messages.awaits(None)
            return (is_left and bool(self._running)) or awaits_anybody or any(mesh.awaits(rank) for mesh in meshes)

    @property
    def left(self) -> MemberLostError | None:
        """The error of what begins after someone has left."""
        if not self._incomplete:
            return None
        return MemberLostError(f"worker {min(self._gone | self._deaf)} has left the run while this worker goes on")

    def abort(self, attempt: int) -> None:
        """Forget everything of attempts before this one; raises StaleError unless it is a higher one."""
        with self._lock:
            self._fence.abort(attempt)
            self._running.clear()
            self._early.abort(attempt)
            self._sparse.abort(attempt)
            self._parts.abort(attempt)
            self._quiet.notify_all()

    def wait_until_quiet(self) -> None:
        """Return when nothing is being received into buffers, and no end told, or all has failed."""
        with self._quiet:
            self._quiet.wait_for(lambda: not self._writing or self._is_failed())

    def close(self) -> None:
        """Nothing begins any more: what is early is for nobody."""
        with self._quiet:
            self._closed = True
            self._quiet.notify_all()

    def wake(self) -> None:
        """All has failed: let those see it who wait for something."""
        with self._quiet:
            self._quiet.notify_all()

    def finish(self, operation: AnyOperation) -> None:
        """Tell the end of an operation, unless it has been given up."""
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
        self._on_end(operation)

    def _admit(self, key: OperationKey) -> None:
        """Raise unless an operation can begin."""
        self._expect_all()
        self._fence.begin(key)

    def _expect_all(self) -> None:
        """Raise unless everybody is still there."""
        if (left := self.left) is not None:
            raise left

    def _expect(self, rank: int | None) -> None:
        """Raise unless `rank` is still there, others are not needed; with None, unless anybody is."""
        if rank in self._gone or (rank is None and self._gone and self._gone == self._others):
            gone = min(self._gone) if rank is None else rank
            raise MemberLostError(f"worker {gone} has left the run while this worker goes on")

    def _start(self, operation: Operation) -> None:
        self._running[operation.key] = operation
        segments = operation.schedule.first_segments()
        right = self._links.get(self._right_neighbour)
        if right is None:
            operation.finish_alone([segment.frame for segment in segments])
        else:
            for segment in segments:
                self._send(right, operation, segment)
        self._end_if_arrived(right, operation)
        for header, values in self._early.pop(operation.key):
            self._advance(operation, header, values, in_place=False)
        self._quiet.notify_all()

    def _places(self, header: FrameHeader) -> Sequence[NDArray[Any]] | None:
        with self._lock:
            if not self._fence.admits(header):
                return None
            if isinstance(header.kind, ActivationPart):
                mesh = self._messages if header.address.group == MESSAGES else self._parts
                places = mesh.places(header)
            else:
                operation = self._running.get(OperationKey.of(header))
                places = operation.places(header) if operation is not None else None
            self._writing += places is not None
        return places

    def _take(self, header: FrameHeader, received: Sequence[NDArray[Any]], in_place: bool) -> None:
        with self._lock:
            if in_place:
                self._written()
            else:
                self._await_room(header)
            if self._is_failed() or not self._fence.admits(header):
                return
            if isinstance(header.kind, ActivationPart):
                receive = self._take_part(header, None if in_place else received[0])
            else:
                receive = None
                self._take_segment(header, received[0], in_place=in_place)
        if receive is not None:
            receive.on_finished()

    def _await_room(self, header: FrameHeader) -> None:
        """Return when a frame is taken in, or may be kept until it is: its sender is not read before."""
        sender = header.sender.rank
        if not self._has_room(sender):
            self._quiet.wait_for(
                lambda: self._has_room(sender) or self._has_begun(header) or self._closed or self._is_failed()
            )

    def _has_room(self, sender: int | None) -> bool:
        return self._held[sender] < self._early_bytes

    def _has_begun(self, header: FrameHeader) -> bool:
        match header.kind:
            case ActivationPart():
                mesh = self._messages if header.address.group == MESSAGES else self._parts
                return mesh.has_begun(header)
            case SparseMessage():
                return self._sparse.has_begun(OperationKey.of(header))
            case _:
                return OperationKey.of(header) in self._running

    def _take_segment(self, header: FrameHeader, values: NDArray[Any], *, in_place: bool) -> None:
        key = OperationKey.of(header)
        operation = self._running.get(key)
        if operation is None:
            self._early.put(key, header.sender.rank, values.nbytes, (header, values.copy()))
        else:
            self._advance(operation, header, values, in_place=in_place)

    def _take_part(self, header: FrameHeader, values: NDArray[Any] | None) -> Receive | None:
        """Take a frame of a transfer, or of a message; returns the receive that is complete by it."""
        if header.address.group == MESSAGES:
            return self._messages.take(header, values)
        operation = self._parts.take(header, values)
        if operation is not None:
            self._end_parts(operation)
        return None

    def _take_frame(self, frame: Frame) -> None:
        with self._lock:
            self._await_room(frame.header)
            taken = not self._is_failed() and self._fence.admits(frame.header)
            operation = self._sparse.take(frame) if taken else None
        if operation is not None:
            self.finish(operation)

    def _written(self) -> None:
        self._writing -= 1
        self._quiet.notify_all()

    def _parts_sent(self, operation: PartsOperation) -> None:
        """Everything for one rank has been sent."""
        with self._lock:
            operation.unsent -= 1
            self._end_parts(operation)

    def _end_parts(self, operation: PartsOperation) -> None:
        if self._parts.end(operation):
            self.finish(operation)

    def _advance(self, operation: Operation, header: FrameHeader, values: NDArray[Any], *, in_place: bool) -> None:
        forward = operation.take(header, values, in_place=in_place)
        right = self._links.get(self._right_neighbour)
        if forward is not None and right is not None:
            self._send(right, operation, forward)
        self._end_if_arrived(right, operation)

    def _end_if_arrived(self, right: FrameWay | None, operation: Operation) -> None:
        if not operation.schedule.done:
            return
        del self._running[operation.key]
        if right is None:
            self.finish(operation)
        else:
            right.after(partial(self.finish, operation))

    def _send(self, right: FrameWay, operation: Operation, segment: Segment) -> None:
        values = operation.views(segment)
        for view in values:
            operation.sent_bytes += view.nbytes
        key, frame = operation.key, segment.frame
        kind = RingSegment(segment.hop, key.number)
        address = key.range(frame.offset, frame.count)
        right.send(FrameHeader(self._identity.sender, address, kind, value_type=operation.value_type), values)

    def _send_to(
        self, rank: int, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False
    ) -> None:
        self._links[rank].send(header, pieces, urgent=urgent)

    def _after_sent_by(self, rank: int, callback: Callable[[], None]) -> None:
        self._links[rank].after(callback)

    def _after_sent_to(self, rank: int, callback: Callable[[], None], *, urgent: bool) -> None:
        self._links[rank].after(callback, urgent=urgent)
