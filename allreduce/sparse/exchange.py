"""Sparse allreduce as pure state machines: slices, messages, what all algorithms share, and the plainest of them.

Each of P ranks brings a slice of an array of n elements. An algorithm decides what goes from whom to whom; whoever
drives it carries messages between ranks, in order from one rank to another, and in any order otherwise. Nothing
depends on that order: results are the same bits on all ranks, and in every rerun.

Messages belong to numbered rounds, in each of which a rank sends one message at most and receives one at most, so
that every round can use the full-duplex link of every rank both ways. Rounds are a schedule and an address, not a
barrier: a message may be sent as soon as an exchange hands it out. `taihu.core.planner.sparse_route` counts them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ExchangeError, FrameError
from taihu.kernels.selection.scatter import make_marks, sum_sparse_in_rank_order
from taihu.kernels.selection.slice_sum import is_ascending


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Some elements of an array.

    Attributes:
        indices: shape (k,), int32, ascending, each once.
        values: shape (k,), fp32.
    """

    indices: NDArray[np.int32]
    values: NDArray[np.float32]

    @classmethod
    def empty(cls) -> Slice:
        """A slice without elements."""
        return cls(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32))

    def between(self, start: int, stop: int) -> Slice:
        """The elements at positions [start, stop), as views."""
        low, high = np.searchsorted(self.indices, np.array((start, stop), dtype=np.int32))
        return Slice(self.indices[low:high], self.values[low:high])

    def check(self, name: str, start: int, stop: int) -> None:
        """Raise FrameError unless this is a slice with positions in [start, stop); `name` begins the message."""
        indices, values = self.indices, self.values
        fits = indices.dtype == np.int32 and values.dtype == np.float32
        if not fits or indices.ndim != 1 or indices.shape != values.shape:
            raise FrameError(
                f"{name}: indices {indices.dtype}{list(indices.shape)} and values "
                f"{values.dtype}{list(values.shape)}; expected int32 and float32 of one shape (k,)"
            )
        if not (indices.flags.c_contiguous and values.flags.c_contiguous):
            raise FrameError(f"{name}: indices or values are strided; expected contiguous arrays")
        if not is_ascending(indices):
            raise FrameError(f"{name}: {len(indices)} indices out of order; expected ascending ones, each once")
        if len(indices) and not start <= indices[0] <= indices[-1] < stop:
            raise FrameError(f"{name}: indices {indices[0]} to {indices[-1]}; expected them in [{start}, {stop})")


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A message of rank `sender` to rank `to` in a round: the elements of its slice at positions [start, stop).

    `indices` count from the start of the whole array. Several messages may share their arrays, which nobody changes.
    `is_own` says that all elements are of the sender's own slice, and none is a sum.
    """

    to: int
    sender: int
    round: int
    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    start: int
    stop: int
    is_own: bool = False

    @property
    def slice(self) -> Slice:
        """Its elements."""
        return Slice(self.indices, self.values)

    def repeats(self, other: Message) -> bool:
        """Whether it has the arrays and the range of another message of the same rank."""
        same_arrays = self.indices is other.indices and self.values is other.values
        return same_arrays and (self.start, self.stop, self.is_own) == (other.start, other.stop, other.is_own)


@dataclass(frozen=True, slots=True)
class Expected:
    """A message that must come: its round, the range that it covers, and how many elements it has at most."""

    round: int
    start: int
    stop: int
    entries: int


class Inbox:
    """Messages that rank `rank` expects from every other rank, in order for each of them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._expected: dict[int, deque[Expected]] = {}
        self._missing = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    @property
    def awaited(self) -> tuple[int, ...]:
        """Ranks of which a message is missing, ascending."""
        return tuple(sorted(sender for sender, messages in self._expected.items() if messages))

    def expect(self, sender: int, *messages: Expected) -> None:
        """Expect further messages of `sender`."""
        self._expected.setdefault(sender, deque()).extend(messages)
        self._missing += len(messages)

    def take(self, message: Message) -> None:
        """Take notice of a message.

        Raises:
            FrameError: it is not the next one of its sender, or not well formed. Nothing was changed.
        """
        name = f"sparse message from rank {message.sender} to rank {message.to} in round {message.round}"
        if message.to != self._rank:
            raise FrameError(f"{name}: arrived at rank {self._rank}; check the addresses of the ranks")
        messages = self._expected.get(message.sender)
        if not messages:
            awaited = ", ".join(map(str, self.awaited)) or "none"
            raise FrameError(f"{name}: expected nothing from that rank now, awaited ranks: {awaited}")
        expected = messages[0]
        if (message.round, message.start, message.stop) != (expected.round, expected.start, expected.stop):
            raise FrameError(
                f"{name} covers [{message.start}, {message.stop}): expected round {expected.round} and "
                f"[{expected.start}, {expected.stop}); all ranks must use one route, in one world, on one array"
            )
        message.slice.check(name, expected.start, expected.stop)
        if len(message.indices) > expected.entries:
            raise FrameError(f"{name}: {len(message.indices)} elements; expected at most {expected.entries}")
        messages.popleft()
        self._missing -= 1


class SparseExchange(ABC):
    """Rank `rank`'s part in the sparse allreduce of an array of `elements` values between `size` ranks.

    Call `begin` once, send what it and every `arrive` return in the order given, and take the result when `done`.
    Messages may arrive before `begin`. Arrays of the own slice and of messages are kept, and must not change until
    the exchange is done and all its messages have been sent. Not thread-safe.

    Raises:
        FrameError: the own slice is malformed.
    """

    def __init__(self, own: Slice, *, rank: int, size: int, elements: int) -> None:
        own.check(f"own slice of rank {rank}", 0, elements)
        self._own = own
        self._rank = rank
        self._size = size
        self._elements = elements
        self._begun = False
        self._inbox = Inbox(rank)

    def begin(self) -> Sequence[Message]:
        """Contribute the own slice; returns what to send."""
        self._begun = True
        return self._start()

    def arrive(self, message: Message) -> Sequence[Message]:
        """Take in a message to this rank; returns what to send.

        Raises:
            FrameError: another round, range or sender than expected, a message that came before, or one that is
                malformed. Nothing was changed.
        """
        self._inbox.take(message)
        return self._accept(message)

    @property
    def done(self) -> bool:
        """Whether there is a result, and nothing is left to receive."""
        return self._begun and self._inbox.is_empty

    @property
    def awaited(self) -> tuple[int, ...]:
        """Ranks whose next message is missing, ascending: whom to ask when nothing arrives any more."""
        return self._inbox.awaited

    def result(self) -> Slice:
        """The slice that all ranks agree on.

        Raises:
            ExchangeError: the exchange is not done.
        """
        self._expect_done()
        return self._result()

    def returned(self) -> Slice:
        """The slice that the result does not contain, for this rank to add to its residual.

        Raises:
            ExchangeError: the exchange is not done.
        """
        self._expect_done()
        return Slice.empty()

    @abstractmethod
    def _start(self) -> Sequence[Message]:
        """The messages that `begin` returns."""

    @abstractmethod
    def _accept(self, message: Message) -> Sequence[Message]:
        """The messages that `arrive` returns for one that was expected."""

    @abstractmethod
    def _result(self) -> Slice:
        """The slice that `result` returns when the exchange is done."""

    def _message(self, to: int, number: int, part: Slice, start: int, stop: int, *, is_own: bool) -> Message:
        return Message(to, self._rank, number, part.indices, part.values, start, stop, is_own)

    def _expect_done(self) -> None:
        if not self.done:
            awaited = ", ".join(map(str, self.awaited)) or "none"
            raise ExchangeError(f"sparse exchange of rank {self._rank}: not done, awaited ranks: {awaited}")


class RankOrderSum:
    """Sums slices; its scratch memory serves all sums of a rank, one after another. Not thread-safe.

    It takes 4 1/8 bytes for each element of the largest range so far.
    """

    def __init__(self) -> None:
        self._total = np.zeros(0, dtype=np.float32)
        self._marks = make_marks(0)

    def __call__(self, slices: Sequence[Slice], start: int, stop: int) -> Slice:
        """The union of slices with positions in [start, stop); values are summed in the order given, in fp32."""
        if stop - start > len(self._total):
            self._total, self._marks = np.zeros(stop - start, dtype=np.float32), make_marks(stop - start)
        room = min(stop - start, sum(len(part.indices) for part in slices))
        indices, values = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
        contributions = [(part.indices, part.values) for part in slices]
        total = self._total[: stop - start]
        count = sum_sparse_in_rank_order(contributions, start, total, self._marks, indices, values)
        return Slice(indices[:count], values[:count])


def ring_offset_rounds(rank: int, size: int) -> tuple[tuple[int, int], ...]:
    """The (to, sender) of rank `rank` in each of P - 1 rounds in which everybody reaches everybody.

    In round h rank r sends to r + h + 1 and receives from r - h - 1 (mod P): no two ranks send to one in a round.
    """
    return tuple(((rank + step) % size, (rank - step) % size) for step in range(1, size))


class SparseAllgather(SparseExchange):
    """Sum of all slices in rank order, at the union of their indices: each goes to every rank, nothing is rejected.

    Slices go directly to each rank, not around a ring. Either way, a rank's link carries (P - 1) k entries out
    and as many in at once, in P - 1 rounds. But a ring passes a slice on only after it has come: P - 1 start-ups
    one behind the other, and a late rank holds up the slices of others. Directly, no message waits for another
    one: with a stream to every rank the start-ups overlap, and a late rank delays nothing but its own slice,
    which it encodes once for all. Rounds are staggered, so that senders do not meet at one receiver. The ring
    would be better where slices differ much in size (a rank sends its own P - 1 times here, and everybody's
    there), or where streams between all pairs of ranks are too many.
    """

    def __init__(self, own: Slice, *, rank: int, size: int, elements: int, summation: RankOrderSum) -> None:
        super().__init__(own, rank=rank, size=size, elements=elements)
        self._summation = summation
        self._slices = {rank: own}
        self._sum: Slice | None = None
        self._rounds = ring_offset_rounds(rank, size)
        for number, (_, sender) in enumerate(self._rounds):
            self._inbox.expect(sender, Expected(number, 0, elements, elements))

    def _start(self) -> Sequence[Message]:
        return [
            self._message(to, number, self._own, 0, self._elements, is_own=True)
            for number, (to, _) in enumerate(self._rounds)
        ]

    def _accept(self, message: Message) -> Sequence[Message]:
        self._slices[message.sender] = message.slice
        return ()

    def _result(self) -> Slice:
        if self._sum is None:
            self._sum = self._summation([self._slices[rank] for rank in range(self._size)], 0, self._elements)
        return self._sum
