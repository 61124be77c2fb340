"""Collective operations between workers: the life of a rank among its peers, and how to take part and wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.operations import AnyOperation, Operations
from taihu.allreduce.order.fence import EARLY_BYTES
from taihu.allreduce.order.operation import IsFailed, Operation, OperationKey, reduce_kind
from taihu.allreduce.parts.mesh import PartsOperation, Transfer
from taihu.allreduce.parts.messages import Receive
from taihu.allreduce.peer_service import PEER_SERVICE, PeerServicer
from taihu.allreduce.ring.kernel_path import KernelRingPath
from taihu.allreduce.ring.kernel_ring import IS_POSSIBLE, KernelRing, warm_up
from taihu.allreduce.ring.schedule import Broadcast, Ring, buffer_chunks
from taihu.allreduce.same_host.agreement import share_with_all
from taihu.allreduce.same_host.path import SameHostPath
from taihu.allreduce.sparse.exchange import SparseExchange
from taihu.allreduce.sparse.mesh import SparseOperation
from taihu.core.base.errors import ConfigError, ExchangeError, MemberLostError, StaleError, TaihuError
from taihu.core.base.words import said_by
from taihu.core.security.identity import member_name
from taihu.core.security.security import Security
from taihu.core.settings import Transport
from taihu.core.system.threads import Condition, Event
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.frames.frame_faults import FrameFaults
from taihu.core.wire.frames.headers import At, ValueType
from taihu.core.wire.frames.identity import Sender, WorkerIdentity
from taihu.core.wire.links.direct_connection import DirectListener
from taihu.core.wire.links.frame_link import FrameLink, LinkEnd
from taihu.core.wire.links.inbox import Origin, Sink
from taihu.core.wire.links.outbox import OutgoingFrame, last_word
from taihu.core.wire.links.pipe import Carrier, PipeEvents
from taihu.core.wire.links.shared_memory import SharedBuffer

_LOOK_AGAIN_S = 0.1


class Communicator:
    """Rank `identity.rank`'s end of all operations between `size` workers; a context manager.

    `register` comes first, `admit` and `connect` when all peers serve. All ranks start the same operations under the
    same keys; frames of an operation that this rank has not started yet wait for it. Operations may be started by any
    thread. `faults` are those of the frames that it sends; `early_bytes` is how much of each peer's may wait;
    `security` is what this worker shows the others.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        size: int,
        *,
        timeout_s: float | None = None,
        listener: DirectListener | None = None,
        faults: FrameFaults | None = None,
        early_bytes: int = EARLY_BYTES,
        security: Security | None = None,
    ) -> None:
        self._security = security or Security()
        listener = listener or DirectListener()
        self._patience = listener.patience
        self._faults = faults
        self.rank = identity.rank
        self.size = size
        self._identity = identity
        self._timeout_s = timeout_s
        self._awaits: Callable[[], str] | None = None
        self._helps_until_s: float | None = None
        self._links: dict[int, FrameLink] = {}
        self._operations = Operations(
            identity,
            size,
            self._links,
            is_failed=lambda: self._failure is not None,
            on_end=self._ended,
            early_bytes=early_bytes,
        )
        self.finish = self._operations.finish
        """Told of an operation that is complete by whoever carried it out off the ring of frames."""

        self._servicer = PeerServicer(
            identity,
            size,
            sink=self._operations.sink,
            events=lambda rank: PipeEvents(self.fail, partial(self._left, rank)),
            listener=listener,
        )
        self._changed = Condition()
        self._failure: TaihuError | None = None
        self._told_of_failure: list[Callable[[BaseException], None]] = []
        self._calls = 0
        self._clock = SystemClock()
        self._rings: list[KernelRing] = []

    @property
    def sent_bytes(self) -> int:
        """Bytes sent so far, headers included."""
        by_kernel = sum(ring.sent_bytes for ring in self._rings)
        return by_kernel + sum(link.sent_bytes for link in self._links.values())

    @property
    def received_bytes(self) -> int:
        """Bytes received so far, headers included."""
        by_kernel = sum(ring.received_bytes for ring in self._rings)
        return by_kernel + self._servicer.received_bytes

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

    def admit(self, incarnations: Sequence[int], *, mesh: bool = False) -> None:
        """Take frames of the left neighbour, with `mesh` of all others, in these lives of all workers by rank.

        Comes before `connect`. Who is not let in by that is told so, and changes nothing.
        """
        left = (self.rank - 1) % self.size
        lives = {rank: incarnation for rank, incarnation in enumerate(incarnations) if mesh or rank == left}
        lives.pop(self.rank, None)
        self._servicer.admit(lives)

    def turn_away(self) -> None:
        """Let nobody in any more: who waits for that hears that this worker is gone. Does nothing behind `close`."""
        self._servicer.end(None)

    def connect(self, addresses: Sequence[str], *, mesh: bool = False, carrier: Carrier = "tcp") -> None:
        """Open the way to the right neighbour; `addresses` are those of all workers by rank.

        With `mesh` the ways to all others too, which sparse operations and transfers of parts need. Frames take
        `carrier`, until `carry`.
        """
        right = (self.rank + 1) % self.size
        for rank in range(self.size):
            if rank != self.rank and (mesh or rank == right):
                self._links[rank] = self._open_link(rank, addresses[rank])
        if self._failure is not None:  # `fail` may have come before the links were there
            self._end_links(self._failure)
        self.prepare(carrier)
        self.carry(carrier)

    def _open_link(self, rank: int, address: str) -> FrameLink:
        peer = Sender(0, rank)
        origin = Origin(f"worker {rank} at {address}", peer, f"worker {self.rank}", self._patience)
        events = PipeEvents(self.fail, partial(self._ended_by, rank))
        end = LinkEnd(PEER_SERVICE, address, origin, member_name("worker", rank), self._security)
        link = FrameLink(end, self._identity, _NOTHING, events, faults=self._faults)
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
        self._operations.carry(carrier)

    @property
    def path(self) -> str:
        """`same-host` where shared values are summed in place, else what they take (`FrameLink.path`)."""
        if any(isinstance(path, SameHostPath) for path in self._operations.paths):
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
            self._operations.paths.append(SameHostPath(self.rank, opened, self))
        return opened is not None

    def hold_next(self) -> None:
        """Have the next sum in shared memory wait for `help`, which the thread that starts it calls soon."""
        for path in self._operations.paths:
            if isinstance(path, SameHostPath):
                path.hold_next()

    def help(self) -> None:
        """Carry out what was held by `hold_next` in this thread, unless there is something before it."""
        for path in self._operations.paths:
            if isinstance(path, SameHostPath):
                path.help()

    def forget_shared(self) -> None:
        """Sum values in no shared memory any more, until `share`; all ranks call this, and nothing is under way."""
        paths = self._operations.paths
        for path in [each for each in paths if isinstance(each, SameHostPath)]:
            path.close()
            paths.remove(path)

    def sum_by_kernel(self, value_type: ValueType = ValueType.FP32, *, is_possible: bool = True) -> bool:
        """Have a kernel sum what needs no word before it is complete; all ranks call this, as `open_ring`.

        Where it is so already nothing changes.

        Returns:
            Whether it is so: it is possible for all ranks, and they can open what it needs.
        """
        if any(isinstance(path, KernelRingPath) for path in self._operations.paths):
            return True
        ring = self.open_ring(value_type, is_possible=is_possible)
        if ring is not None:
            self._operations.paths.append(KernelRingPath(ring, self.rank, self))
        return ring is not None

    def open_ring(self, value_type: ValueType = ValueType.FP32, *, is_possible: bool = True) -> KernelRing | None:
        """A ring of connections for sums that a kernel carries out, if all ranks can have it; all call this.

        The kernel of `value_type` is made ready, so that no sum is measured with that in it. One thread at a time
        uses the ring, and `close` closes it.
        """
        right = self._links.get((self.rank + 1) % self.size)
        with ExitStack() as unused:
            opened = right.open_for_ring() if right is not None and is_possible and IS_POSSIBLE else None
            if opened is not None:
                unused.callback(opened.close)
                warm_up(reduce_kind(value_type))
            agreed = np.array([float(opened is not None)])
            self.allreduce(agreed, ValueType.FP64)
            # Who has opened one was told by its right neighbour that it is welcome: by then that one has it.
            left = self._servicer.connection_for_ring((self.rank - 1) % self.size)
            if left is not None:
                unused.callback(left.close)
            if opened is None or left is None or agreed[0] != self.size:
                return None
            ring = KernelRing(self.rank, self.size, left, opened, self._patience.answer_s)
            self._rings.append(ring)
            unused.pop_all()
            return ring

    def count_call(self) -> int:
        """Begin a call of all ranks that somebody else carries out; returns its number."""
        self._calls += 1
        return self._calls

    @contextmanager
    def waiting_in(self, call: int) -> Iterator[IsFailed]:
        """In the block this rank waits for a call of `count_call`; an error of taihu's that leaves it ends all.

        The function that comes tells why it will not end, or has not in time; None while it may.
        """
        what = f"operation {call} of step 0"
        until_s = None if self._timeout_s is None else self._clock.now() + self._timeout_s

        def failure() -> BaseException | None:
            if self._failure is None and until_s is not None and self._clock.now() > until_s:
                return self._late(what, self._timeout_s)
            return self._failure

        self._awaits = lambda: what
        try:
            yield failure
        except TaihuError as error:
            self.fail(error)
            raise
        finally:
            self._awaits = None

    def start(self, operation: Operation) -> None:
        """Take part in an operation; `wait` returns when it is finished. After a failure nothing is started."""
        self._begin(partial(self._operations.start, operation))

    def start_sparse(self, operation: SparseOperation, exchange: SparseExchange) -> None:
        """Take part in a sparse operation, between workers that `connect` has joined to a mesh; see `start`."""
        self._begin(partial(self._operations.start_sparse, operation, exchange))

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
        self._begin(partial(self._operations.start_parts, operation))
        return operation

    def send(self, rank: int, tag: int, values: NDArray[np.uint16], on_sent: Callable[[], None]) -> None:
        """Send a message to another rank that `connect` has joined; after a failure nothing is sent.

        Args:
            rank: not the own one.
            tag: 0 or more.
            values: shape (n,), contiguous; they belong to the message until `on_sent` is called, by any thread.
            on_sent: is called when the other side has taken them, asked for or not.
        """
        self._begin(partial(self._operations.send_message, rank, tag, values, on_sent))

    def receive(self, receive: Receive) -> None:
        """Wait for a message; `receive.on_finished` is called, by any thread, unless all fails."""
        self._begin(partial(self._operations.receive_message, receive))

    def wait(self, operation: AnyOperation, timeout_s: float | None = None) -> None:
        """Return when the result is in the buffer, which then belongs to the caller again.

        Raises:
            ExchangeError: it is not finished within `timeout_s`, or the communicator's own.
            TaihuError: what `fail` was told.
        """
        at, group, _ = operation.key
        if at.attempt < self._operations.attempt and not operation.finished:
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
            operations, attempt = self._operations, self._operations.attempt
            self._awaits = what
            self._changed.wait_for(lambda: predicate() or self._failure or operations.attempt != attempt, timeout_s)
            self._awaits = None
            if self._failure is not None:
                raise self._failure
            if self._operations.attempt != attempt:
                raise StaleError(f"{what()} was given up: the run goes back, attempt {self._operations.attempt}")
            if not predicate():
                raise self._late(what(), timeout_s)

    @staticmethod
    def _late(what: str, timeout_s: float | None) -> ExchangeError:
        return ExchangeError(
            f"{what} did not end within {timeout_s or 0.0:g} s; another worker is slow or stuck, or raise "
            "exchange.timeout_s"
        )

    @property
    def begun(self) -> tuple[int, int]:
        """The numbers of calls and of transfers of all ranks that this one has begun: others begin as many."""
        return self._calls, self._operations.transfers

    @property
    def left(self) -> MemberLostError | None:
        """The error of what needs everybody, once a worker has left in good order."""
        return self._operations.left

    @property
    def awaited(self) -> str:
        """The cause of a thread's wait, in words; "" where none waits."""
        awaits = self._awaits
        return "" if awaits is None else awaits()

    def allreduce(self, values: NDArray[Any], value_type: ValueType = ValueType.FP32, *, mean: bool = False) -> None:
        """Replace `values` on every rank by the sum or mean over all ranks; the same bits everywhere.

        Args:
            values: shape (n,), of the type's dtype, contiguous and writable; n is the same on all ranks.
            value_type: 16-bit types are codes of `taihu.kernels.base.half`; every sum of two values is rounded.
            mean: multiply the sums by 1 / size.

        Raises:
            TaihuError: see `wait`.
        """
        # Who only waits carries the sum out itself where memory is shared: no other thread has to be woken.
        self.hold_next()
        self._awaits = lambda: f"operation {self._calls} of step 0"
        self._helps_until_s = None if self._timeout_s is None else self._clock.now() + self._timeout_s
        try:
            wait = self.begin_allreduce(values, value_type, mean=mean)
        finally:
            # Also where it could not begin: nothing that comes later is to be held.
            self.help()
            self._awaits = self._helps_until_s = None
        wait()

    def begin_allreduce(
        self, values: NDArray[Any], value_type: ValueType = ValueType.FP32, *, mean: bool = False
    ) -> Callable[[], None]:
        """As `allreduce`; returns what waits for its end, until which `values` belong to it."""
        schedule = Ring(self.rank, buffer_chunks(len(values), self.size, values.itemsize))
        scale = 1.0 / self.size if mean else 1.0
        operation = Operation(self._next_key(), values, value_type, schedule, scale=scale)
        self.start(operation)
        return partial(self.wait, operation)

    def broadcast(self, values: NDArray[Any], value_type: ValueType = ValueType.FP32, *, root: int = 0) -> None:
        """Replace `values` (shape (n,), as in `allreduce`) on every rank by those of rank `root`."""
        frames = buffer_chunks(len(values), 1, values.itemsize)[0]
        schedule = Broadcast(self.rank, self.size, frames, root)
        self._call(Operation(self._next_key(), values, value_type, schedule))

    def fail(self, error: BaseException) -> None:
        """Make every present and later `wait` raise `error`, and tell the neighbours why."""
        with self._changed:
            if self._failure is not None:
                return
            self._failure = error if isinstance(error, TaihuError) else ExchangeError(str(error) or repr(error))
            self._changed.notify_all()
        self._operations.wake()
        for tell in self._told_of_failure:
            tell(self._failure)
        self._servicer.end(type(self._failure)(self._said_of(self._failure)))
        self._end_links(self._failure)

    def _end_links(self, failure: TaihuError) -> None:
        for link in list(self._links.values()):
            link.fail(self._farewell(self._said_of(failure)))

    def _said_of(self, failure: TaihuError) -> str:
        """The one that passes it on names the one that failed."""
        return said_by(f"worker {self.rank}", str(failure))

    @property
    def failure(self) -> TaihuError | None:
        """The error that has ended all operations; who waits may raise it before others are told of it."""
        return self._failure

    @property
    def late(self) -> ExchangeError | None:
        """The error of a sum that this thread helps with for too long."""
        until_s = self._helps_until_s
        if until_s is None or self._clock.now() <= until_s:
            return None
        return self._late(self.awaited or "a sum in shared memory", self._timeout_s)

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Have `tell` called with what ends all operations, by any thread; at once if that has happened."""
        with self._changed:
            self._told_of_failure.append(tell)
            failure = self._failure
        if failure is not None:
            tell(failure)

    def forget_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Have `tell`, which `on_failure` was given, called no more."""
        with self._changed:
            self._told_of_failure.remove(tell)

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
        self._operations.abort(attempt)
        with self._changed:
            self._calls = 0
            self._changed.notify_all()
        for path in self._operations.paths:
            path.abort(attempt)
        self._operations.wait_until_quiet()
        for link in self._links.values():
            read = Event()
            link.after(read.set)
            while self._failure is None and not read.wait(_LOOK_AGAIN_S):
                pass
        if self._failure is not None:
            raise self._failure

    def close(self, *, within_s: float | None = None) -> None:
        """Leave in good order; nothing may be under way.

        Behind `fail` others may have so long, all together, to hear of that: who does not hear any more is not
        waited for.
        """
        self._operations.close()
        for path in self._operations.paths:
            path.close()
        for ring in self._rings:
            ring.close()
        until_s = None if within_s is None else self._clock.now() + within_s
        for link in self._links.values():
            if until_s is not None:
                link.settle_end(max(0.0, until_s - self._clock.now()))
                link.abandon()
            link.close(None if until_s is not None else self._farewell())
        self._servicer.close()

    def _call(self, operation: Operation) -> None:
        self.start(operation)
        self.wait(operation)

    def _next_key(self) -> OperationKey:
        self._calls += 1
        return OperationKey(At(0, 0, self._operations.attempt), self._calls)

    def _begin(self, start: Callable[[], None]) -> None:
        if self._failure is not None:
            return
        try:
            start()
        except TaihuError as error:
            self.fail(error)

    def _ended(self, operation: AnyOperation) -> None:
        with self._changed:
            operation.finished = True
            self._changed.notify_all()

    def _ended_by(self, receiver: int) -> None:
        """One whom this rank sends to has left in good order; nothing that has begun waits for it."""
        self._operations.end(receiver)

    def _left(self, sender: int) -> None:
        """Someone has left in good order: nobody may wait for it."""
        if self._operations.leave(sender) and (left := self._operations.left) is not None:
            self.fail(left)

    def _farewell(self, failure: str = "") -> OutgoingFrame:
        return last_word(self._identity.sender, At(0, 0, self._operations.attempt), failure)


_NOTHING = Sink((), places=lambda _: None, take=lambda *_: None, take_frame=lambda _: None)
"""Between workers nothing is answered."""
