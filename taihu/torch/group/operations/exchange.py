"""The things that a group's operations are made of: sums, transfers between all ranks, broadcasts and messages."""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.operation import IsFailed, reduce_kind
from taihu.allreduce.parts.mesh import PartsOperation, Transfer
from taihu.allreduce.parts.messages import Receive
from taihu.allreduce.ring.kernel_ring import KernelRing
from taihu.allreduce.staged import StagedSums, share
from taihu.core.base.errors import ExchangeError, MemberLostError, TaihuError
from taihu.core.system.clocks import monotonic
from taihu.core.wire.frames.headers import ValueType
from taihu.torch.group.meeting.meeting import Meeting
from taihu.torch.group.meeting.place import GroupPlace
from taihu.torch.group.operations.bits import letter, parcel
from taihu.torch.group.operations.calls import Call, Words
from taihu.torch.group.operations.roll_call import RollCall
from taihu.torch.group.operations.watch import Watch

_RING_BYTES: Final = 1 << 20
"""From this size on a broadcast goes around a ring: its root sends everything once."""
_AHEAD_BYTES: Final = 8 << 20
"""The most bytes of smaller ones that wait for others to come to them, in copies."""

_CALLS: Final = 16
_GONE: Final = re.compile(r"worker [0-9]+( at \S+)? (was lost|has (?!not ))")
"""The beginning of an error that says who is there no more: lost, or left by an end or an abort of its own."""

Bytes = NDArray[np.uint8]


class GroupExchange:
    """A process's way to the others of its group, by their `meeting`; `store` is the group's part of torch's.

    One thread calls what all ranks call together, in the same order; any thread sends and receives messages. After an
    error every operation of every rank ends with it: TaihuError, which calls ranks of the group workers.
    """

    def __init__(self, meeting: Meeting, store: Any, place: GroupPlace) -> None:
        self.rank, self.size = place.rank, place.size
        self._meeting = meeting
        self._communicator = self._meeting.communicator
        self._failure: BaseException | None = None
        self._communicator.on_failure(self._failed)
        self._roll_call = RollCall(store, place, self._meeting.word)
        self._call = Call(0, Words(""))
        # The last calls: a broadcast's root has gone on when it hears that others have called something else.
        self._calls: deque[Call] = deque(maxlen=_CALLS)
        self._is_explained = False
        self._differing: ExchangeError | None = None
        self._watch = Watch(self._compare)
        # Broadcasts of this rank that others have not taken yet, with their sizes.
        self._ahead: deque[tuple[int, PartsOperation]] = deque()
        self._sums: StagedSums | KernelRing | None = None
        self._has_chosen = False

    @property
    def failure(self) -> BaseException | None:
        """The error with which everything ends, if there is one."""
        return self._failure or self._communicator.failure

    def carry_out(self, words: Words, run: Callable[[], None]) -> None:
        """Make the next call of all ranks, which `run` does, unless everything has ended.

        Raises:
            TaihuError: what `run` raises, in better words where ranks have not called the same.
        """
        if (failure := self.failure) is not None and _GONE.match(str(failure)):
            # Behind the loss of a rank the others may call what they like.
            raise failure
        call = self._call = Call(self._call.number + 1, words)
        self._calls.append(call)
        self._watch.begin(call)
        try:
            if failure is not None:
                raise failure
            run()
        except TaihuError as error:
            if self.size == 1:
                raise
            if self._is_explained:
                # The watch may have found the difference just before the call failed by it.
                raise self._differing or error from None
            self._is_explained = True
            is_lost = isinstance(error, MemberLostError)
            told = self._roll_call.after_failure(list(self._calls), is_lost=is_lost) or error
            self._failure = told
            raise told from None
        finally:
            self._watch.end()

    def fail(self, error: BaseException) -> None:
        """End every operation of every rank with `error`, or with what came first."""
        self._communicator.fail(error)

    def give_up(self, error: TaihuError) -> None:
        """End every operation of every rank with `error`, which needs no other rank's word on it."""
        self._is_explained = True
        self.fail(error)

    def close(self) -> None:
        """Leave in good order, or behind an error at once."""
        self._watch.close()
        if self.failure is None:
            self._meeting.close()
        else:
            self._meeting.cut()

    def allreduce(
        self, what: str, values: NDArray[Any], value_type: ValueType, timeout_s: float, *, mean: bool
    ) -> None:
        """Replace `values`, shape (n,) of the type's dtype, contiguous, by their sum or mean over all ranks.

        On one machine that is done in shared memory, else around a ring, by a kernel where all can.
        """
        if self.size == 1:
            return
        if not self._has_chosen:
            self._has_chosen = True
            self._bounded(what, timeout_s, lambda: self._choose(value_type))
        sums, kind = self._sums, reduce_kind(value_type)
        if not len(values) and not isinstance(sums, StagedSums):
            # A ring has nothing to send then, and would not notice that others have.
            self.meet(what, timeout_s)
            return
        if sums is None:
            self._bounded(what, timeout_s, lambda: self._communicator.allreduce(values, value_type, mean=mean))
            return
        calls = list(self._calls)
        behind = (lambda: sums.behind) if isinstance(sums, StagedSums) else lambda: self._roll_call.missing(calls)
        sums.allreduce(values, kind, self._ended(what, timeout_s, behind), mean=mean)

    def meet(self, what: str, timeout_s: float) -> None:
        """Wait until all ranks have come to the call."""
        sends, places = ([[np.zeros(2, dtype=np.uint8)] for _ in range(self.size)] for _ in range(2))
        self.swap(what, sends, places, timeout_s)

    def broadcast(self, what: str, data: Bytes, root: int, timeout_s: float) -> None:
        """Replace `data` on every rank by those of rank `root`."""
        if self.size > 2 and len(data) >= _RING_BYTES:
            place = parcel(data)
            ring = self._communicator.broadcast
            self._bounded(what, timeout_s, lambda: ring(place.values, ValueType.FP16, root=root))
            place.unpack()
            return
        if self.rank == root and len(data) < _RING_BYTES:
            self._send_ahead(what, data.copy(), timeout_s)
            return
        others: list[list[Bytes]] = [[] for _ in range(self.size)]
        everybody = [[data] for _ in range(self.size)]
        from_root = [[data] if rank == root else [] for rank in range(self.size)]
        is_root = self.rank == root
        self.swap(what, everybody if is_root else others, others if is_root else from_root, timeout_s)

    def _send_ahead(self, what: str, data: Bytes, timeout_s: float) -> None:
        """Send all others `data`, which nobody changes any more, without waiting until they have come to it."""
        words = [self._mark, letter(data)]
        letters = [words if rank != self.rank else [] for rank in range(self.size)]
        transfer = Transfer(letters, [[] for _ in range(self.size)])
        self._ahead.append((len(data), self._communicator.start_parts(transfer, ValueType.FP16)))
        if (failure := self.failure) is not None:
            raise failure
        while self._ahead and self._ahead[0][1].finished:
            self._ahead.popleft()
        while sum(size for size, _ in self._ahead) > _AHEAD_BYTES:
            self._wait(what, self._ahead.popleft()[1], timeout_s)

    def swap(
        self, what: str, sends: Sequence[Sequence[Bytes]], receives: Sequence[Sequence[Bytes]], timeout_s: float
    ) -> None:
        """Send each rank its arrays of `sends`, and receive those of each in `receives`; own ones are left alone.

        All are contiguous; a rank receives as many arrays of a rank, of the same sizes, as that one sends it.
        """
        others = [rank != self.rank for rank in range(self.size)]
        parcels = [
            [parcel(data) for data in each] if other else [] for each, other in zip(receives, others, strict=True)
        ]
        own = self._mark
        marks = [np.zeros_like(own) for _ in others]
        letters = [
            [own, *map(letter, each)] if other and each else [] for each, other in zip(sends, others, strict=True)
        ]
        places = [
            [mark, *(each.values for each in some)] if some else [] for mark, some in zip(marks, parcels, strict=True)
        ]
        operation = self._communicator.start_parts(Transfer(letters, places), ValueType.FP16)
        self._wait(what, operation, timeout_s)
        for rank, (mark, some) in enumerate(zip(marks, parcels, strict=True)):
            if some and not np.array_equal(mark, own):
                raise ExchangeError(
                    f"worker {rank} has not called {self._call.words.common}, as worker {self.rank} has"
                )
            for each in some:
                each.unpack()

    @property
    def _mark(self) -> NDArray[np.uint16]:
        """Two values before those of the present call, by which its receiver knows whether it calls the same."""
        return np.array([zlib.crc32(self._call.words.common.encode())], dtype=np.uint32).view(np.uint16)

    def send(self, rank: int, tag: int, data: Bytes, on_sent: Callable[[], None]) -> None:
        """Send a message to another rank; `on_sent` is called, by any thread, when `data` may be written to again."""
        self._communicator.send(rank, tag, letter(data), on_sent)

    def receive(self, rank: int | None, tag: int, data: Bytes, on_received: Callable[[int], None]) -> None:
        """Receive a message of another rank, or of any; `on_received(rank)` is called, by any thread, at its end."""
        place = parcel(data)

        def arrived() -> None:
            place.unpack()
            on_received(-1 if receive.sender is None else receive.sender)

        receive = Receive(place.values, rank, tag, arrived)
        self._communicator.receive(receive)

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Have `tell` called with what ends all operations; at once if that has happened."""
        self._communicator.on_failure(tell)

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    def _choose(self, value_type: ValueType) -> None:
        communicator = self._communicator
        self._sums = share(communicator, self.rank, self.size) or communicator.open_ring(value_type)

    def _wait(self, what: str, operation: PartsOperation, timeout_s: float) -> None:
        wait = self._communicator.wait
        self._bounded(what, timeout_s, lambda: wait(operation, timeout_s))

    def _bounded(self, what: str, timeout_s: float, run: Callable[[], None]) -> None:
        """Run something that ends with ExchangeError when it does not end in time, and say then who is late."""
        try:
            run()
        except ExchangeError:
            if self.failure is not None:
                raise
            raise self._late(what, timeout_s, self._roll_call.missing(list(self._calls))) from None

    def _late(self, what: str, timeout_s: float, missing: list[int]) -> ExchangeError:
        self._is_explained = True
        return self._roll_call.late(what, timeout_s, missing)

    def _ended(self, what: str, timeout_s: float, behind: Callable[[], list[int]]) -> IsFailed:
        """Asked while a sum in shared memory waits: the error that ends it, if there is one."""
        deadline = monotonic() + timeout_s

        def ended() -> BaseException | None:
            error = self.failure or self._communicator.left
            if error is None and monotonic() > deadline:
                return self._late(what, timeout_s, behind())
            return error

        return ended

    def _compare(self, call: Call) -> None:
        """End everything where others wait for something else in the place of `call`."""
        error = self._roll_call.other_calls([each for each in list(self._calls) if each.number <= call.number])
        if error is not None:
            self._differing = error
            self._is_explained = True
            self.fail(error)


@dataclass(frozen=True)
class Turn:
    """One operation of all ranks: `what` names it in messages, and it ends within `timeout_s`."""

    exchange: GroupExchange
    what: str
    timeout_s: float

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.exchange.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.exchange.size

    def late_device(self) -> IsFailed:
        """Asked while this rank's device computes what it sends: the error that ends it, if there is one."""
        deadline = monotonic() + self.timeout_s
        late = f"worker {self.rank}'s device has not come to {self.what}: Timed out after {self.timeout_s:g} s"

        def ended() -> BaseException | None:
            if (failure := self.exchange.failure) is not None:
                return failure
            is_late = monotonic() > deadline
            return ExchangeError(f"{late}; see what it computes") if is_late else None

        return ended

    def allreduce(self, values: NDArray[Any], value_type: ValueType, *, mean: bool) -> None:
        """Sum or average over all ranks, as `Exchange.allreduce`."""
        self.exchange.allreduce(self.what, values, value_type, self.timeout_s, mean=mean)

    def broadcast(self, data: Bytes, root: int) -> None:
        """Bring the root's bytes to all ranks, as `Exchange.broadcast`."""
        self.exchange.broadcast(self.what, data, root, self.timeout_s)

    def meet(self) -> None:
        """Wait until all ranks are there, as `Exchange.meet`."""
        self.exchange.meet(self.what, self.timeout_s)

    def swap(self, sends: Sequence[Sequence[Bytes]], receives: Sequence[Sequence[Bytes]]) -> None:
        """Send each rank its arrays, and receive those of each, as `Exchange.swap`."""
        self.exchange.swap(self.what, sends, receives, self.timeout_s)
