"""Parts of arrays from every rank to every other one: the gathers and scatters of `allreduce.parts.shards` use them.

Whatever a rank sends to another one is cut into frames of equal size, which arrive in order. Parts have no sum: who
adds them up does so in rank order when all are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.fence import EarlyFrames, Held
from taihu.allreduce.order.operation import OperationKey
from taihu.core.base.errors import FrameError
from taihu.core.planner.partition import slice_bounds
from taihu.core.wire.frames.headers import At, FrameHeader, ValueType
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.frames.kinds import ActivationPart

_FRAME_BYTES: Final = 1 << 20
# A rank whose part is only to send may be so many transfers ahead of one that receives.
_MOST_AHEAD: Final = 1024

Values = NDArray[Any]


class Send(Protocol):
    """Queues a frame for a rank."""

    def __call__(self, rank: int, header: FrameHeader, pieces: Sequence[Values], *, urgent: bool) -> None:
        """Queue it."""
        ...


class After(Protocol):
    """Says what is called when all frames to a rank, as urgent, have been taken."""

    def __call__(self, rank: int, callback: Callable[[], None], *, urgent: bool) -> None:
        """Queue it."""
        ...


@dataclass(frozen=True)
class Transfer:
    """Arrays that one rank sends to each rank, and those that receive what each rank sends; nothing for itself.

    Both are lists of contiguous arrays of one dtype; what a rank sends to another one has as many elements as that
    one receives of it, in whatever pieces.
    """

    sends: Sequence[Sequence[Values]]
    receives: Sequence[Sequence[Values]]

    @property
    def sent_bytes(self) -> int:
        """Bytes of values."""
        return sum(piece.nbytes for pieces in self.sends for piece in pieces)


@dataclass(frozen=True)
class _Incoming:
    """One frame: elements [offset, offset + count) of what goes from one rank to another, one of `frames`."""

    offset: int
    count: int
    frames: int
    pieces: list[Values]


@dataclass
class PartsOperation:
    """A transfer under way; `finished` when all has been received, and what is sent may be written to again.

    An urgent one overtakes those that are not.
    """

    transfer: Transfer
    value_type: ValueType
    urgent: bool = False
    on_finished: Callable[[], None] = lambda: None
    key: OperationKey = field(default=OperationKey(At(0, 0), 0), init=False)
    finished: bool = field(default=False, init=False)
    unsent: int = field(default=0, init=False)
    expected: dict[int, deque[_Incoming]] = field(default_factory=dict, init=False)

    @property
    def done(self) -> bool:
        """Whether nothing is missing any more."""
        return not self.unsent and not any(self.expected.values())


class PartsMesh:
    """The running transfers of one rank; frames of those that it has not begun yet wait for it. Not thread-safe.

    Only its order among frames of one operation matters to a receiver. `held` counts what waits; `begun` are the
    transfers of this attempt.
    """

    def __init__(self, identity: WorkerIdentity, send: Send, after: After, held: Held) -> None:
        self._identity = identity
        self._send = send
        self._after = after
        self._attempt = 0
        self.begun = 0
        self._running: dict[OperationKey, PartsOperation] = {}
        self._early: EarlyFrames[tuple[FrameHeader, Values]] = EarlyFrames(held)

    def next_key(self) -> OperationKey:
        """The key of the next operation, the same on all ranks."""
        self.begun += 1
        return OperationKey(At(0, 0, self._attempt), self.begun)

    def abort(self, attempt: int) -> None:
        """Forget what is under way or early of attempts before `attempt`, in which transfers are counted anew."""
        self._attempt = attempt
        self.begun = 0
        self._running.clear()
        self._early.abort(attempt)

    def has_begun(self, header: FrameHeader) -> bool:
        """Whether a frame's transfer has begun here."""
        return OperationKey.of(header) in self._running

    def awaits(self, rank: int) -> bool:
        """Whether an operation needs something of `rank`."""
        return any(operation.expected.get(rank) for operation in self._running.values())

    def begin(self, operation: PartsOperation, sent: Callable[[PartsOperation], None]) -> None:
        """Take part; `sent(operation)` is called once for each rank that is sent something, by any thread.

        Raises:
            FrameError: what has arrived already does not belong to it.
        """
        operation.key = self.next_key()
        rank, transfer = self._identity.rank, operation.transfer
        size = len(transfer.sends)
        for sender, pieces in enumerate(transfer.receives):
            if sender != rank:
                operation.expected[sender] = deque(_cut(pieces))
        self._running[operation.key] = operation
        for step in range(1, size):
            # Everybody begins with another receiver.
            to = (rank + step) % size
            if parts := _cut(transfer.sends[to]):
                operation.unsent += 1
                for part in parts:
                    self._send(to, self._header(operation, part), part.pieces, urgent=operation.urgent)
                self._after(to, lambda: sent(operation), urgent=operation.urgent)
        for header, values in self._early.pop(operation.key):
            self._arrive(operation, header, values)

    def places(self, header: FrameHeader) -> Sequence[Values] | None:
        """The places of a frame's values, once its operation has begun; raises FrameError as `take` does."""
        operation = self._running.get(OperationKey.of(header))
        return None if operation is None else self._next(operation, header).pieces

    def take(self, header: FrameHeader, values: Values | None) -> PartsOperation | None:
        """Take notice of a frame, whose `values` are None when they lie in their places; returns its operation.

        Raises:
            FrameError: it is not the next one of its sender. Nothing was changed.
        """
        key = OperationKey.of(header)
        operation = self._running.get(key)
        if operation is None:
            ahead = key.group - (self.begun if key.at.attempt == self._attempt else 0)
            if key.at.step or not 0 < ahead <= _MOST_AHEAD:
                raise FrameError(
                    f"{header.sender.label} sent a part of transfer {key.group}, step {key.at.step}: "
                    f"expected one of the {_MOST_AHEAD} after {self.begun}"
                )
            if values is not None:
                self._early.put(key, header.sender.rank, values.nbytes, (header, values.copy()))
            return None
        self._arrive(operation, header, values)
        return operation

    def end(self, operation: PartsOperation) -> bool:
        """Forget `operation` if it is done; returns whether it was, which it is once."""
        return operation.done and self._running.pop(operation.key, None) is not None

    def _arrive(self, operation: PartsOperation, header: FrameHeader, values: Values | None) -> None:
        part = self._next(operation, header)
        if values is not None:
            taken = 0
            for piece in part.pieces:
                piece[:] = values[taken : taken + len(piece)]
                taken += len(piece)
        operation.expected[_rank_of(header)].popleft()

    def _next(self, operation: PartsOperation, header: FrameHeader) -> _Incoming:
        parts = operation.expected.get(_rank_of(header))
        address, frames = header.address, header.expect(ActivationPart).frames
        seen = (address.offset, address.elements, frames, header.value_type)
        if parts:
            part = parts[0]
            if seen == (part.offset, part.count, part.frames, operation.value_type):
                return part
        expected = f"{parts[0].count} values at {parts[0].offset} of {parts[0].frames} frames" if parts else "no more"
        raise FrameError(
            f"{header.sender.label} sent {address.elements} {header.value_type.label} values at {address.offset} of "
            f"{frames} frames: expected {expected}, {operation.value_type.label}; give every worker the same "
            "model, batch and scheme"
        )

    def _header(self, operation: PartsOperation, part: _Incoming) -> FrameHeader:
        address = operation.key.range(part.offset, part.count)
        return FrameHeader(
            self._identity.sender, address, ActivationPart(part.frames), value_type=operation.value_type
        )


def _rank_of(header: FrameHeader) -> int:
    return -1 if header.sender.rank is None else header.sender.rank


def _cut(pieces: Sequence[Values]) -> list[_Incoming]:
    """Cut what two ranks exchange into frames that differ in size by one element at most."""
    total = sum(map(len, pieces))
    if not total:
        return []
    frames = -(-total * pieces[0].itemsize // _FRAME_BYTES)
    parts = []
    rest = deque(piece for piece in pieces if len(piece))
    for frame in range(frames):
        start, stop = slice_bounds(total, frames, frame)
        parts.append(_Incoming(start, stop - start, frames, _take_from(rest, stop - start)))
    return parts


def _take_from(rest: deque[Values], count: int) -> list[Values]:
    """Remove the first `count` elements of `rest`."""
    taken: list[Values] = []
    while count:
        piece = rest.popleft()
        if len(piece) > count:
            rest.appendleft(piece[count:])
            piece = piece[:count]
        taken.append(piece)
        count -= len(piece)
    return taken


def value_type_of(values: Values) -> ValueType:
    """The type on the wire of fp32 or fp64 values."""
    return ValueType.FP64 if values.dtype == np.float64 else ValueType.FP32
