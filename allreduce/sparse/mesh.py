"""Sparse allreduces under way on one rank: messages become frames, and frames find the exchange they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.fence import EarlyFrames, Held
from taihu.allreduce.order.operation import OperationKey
from taihu.allreduce.sparse.exchange import Message, SparseExchange
from taihu.allreduce.sparse.few_bits import FewBits
from taihu.core.base.errors import FrameError
from taihu.core.wire.frames.headers import Frame, FrameHeader, ValueType
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.frames.kinds import Encoding, SparseMessage
from taihu.kernels.packing import pack, packed_bound, unpack

Send = Callable[[int, FrameHeader, Sequence[NDArray[Any]]], None]


@dataclass
class SparseOperation:
    """One sparse allreduce; `exchange` is this rank's part in it, once it has begun.

    Attributes:
        key: the same on all ranks.
        on_finished: called with the operation when there is a result; by any thread.
        few_bits: the own slice in codes, as which it travels; None where it travels as it is.
        finished: whether it has returned.
        sent_bytes, received_bytes: of values and their places.
    """

    key: OperationKey
    on_finished: Callable[[SparseOperation], None] = lambda operation: None
    few_bits: FewBits | None = None
    exchange: SparseExchange | None = field(default=None, init=False)
    finished: bool = field(default=False, init=False)
    sent_bytes: int = field(default=0, init=False)
    received_bytes: int = field(default=0, init=False)


class SparseCoding(Protocol):
    """The frames of messages, and their way: `SparseFrames`, or one of sizes and prices alone."""

    def send_all(self, operation: SparseOperation, messages: Sequence[Message]) -> None:
        """Send messages, those to one rank in their order."""

    def decode(self, operation: SparseOperation, frame: Frame) -> Message:
        """The message of a frame; raises FrameError where it is malformed."""


class SparseMesh:
    """The running operations; frames of those that this rank has not begun yet wait for it. Not thread-safe.

    `coding` makes frames of messages, and sends them. `held` counts what waits.
    """

    def __init__(self, coding: SparseCoding, held: Held) -> None:
        self._coding = coding
        self._running: dict[OperationKey, SparseOperation] = {}
        self._early: EarlyFrames[Frame] = EarlyFrames(held)

    def awaits(self, rank: int) -> bool:
        """Whether an operation needs a message of `rank`."""
        return any(rank in operation.exchange.awaited for operation in self._running.values() if operation.exchange)

    def has_begun(self, key: OperationKey) -> bool:
        """Whether frames of an operation are taken in."""
        return key in self._running

    def abort(self, attempt: int) -> None:
        """Forget what is under way or early of attempts before `attempt`."""
        self._running.clear()
        self._early.abort(attempt)

    def begin(self, operation: SparseOperation, exchange: SparseExchange) -> bool:
        """Take part; returns whether the operation is done already.

        Raises:
            FrameError: see `take`.
        """
        operation.exchange = exchange
        self._running[operation.key] = operation
        self._coding.send_all(operation, exchange.begin())
        for frame in self._early.pop(operation.key):
            self._arrive(operation, exchange, frame)
        return self._end_if_done(operation, exchange)

    def take(self, frame: Frame) -> SparseOperation | None:
        """Take in a frame; returns the operation if that completes it.

        Raises:
            FrameError: it is malformed, or not what its sender should send next. Nothing was changed.
        """
        key = OperationKey.of(frame.header)
        operation = self._running.get(key)
        if operation is None or operation.exchange is None:
            self._early.put(key, frame.header.sender.rank, frame.size_bytes, frame)
            return None
        self._arrive(operation, operation.exchange, frame)
        return operation if self._end_if_done(operation, operation.exchange) else None

    def _arrive(self, operation: SparseOperation, exchange: SparseExchange, frame: Frame) -> None:
        operation.received_bytes += frame.size_bytes
        self._coding.send_all(operation, exchange.arrive(self._coding.decode(operation, frame)))

    def _end_if_done(self, operation: SparseOperation, exchange: SparseExchange) -> bool:
        if exchange.done:
            del self._running[operation.key]
        return exchange.done


class SparseFrames:
    """Frames with the values and places of messages. `send(rank, header, pieces)` hands a frame to a rank."""

    def __init__(self, identity: WorkerIdentity, send: Send) -> None:
        self._identity = identity
        self._send = send

    def send_all(self, operation: SparseOperation, messages: Sequence[Message]) -> None:
        """Send messages; those that follow each other with the same slice are packed once."""
        pieces: Sequence[NDArray[Any]] = ()
        former: Message | None = None
        for message in messages:
            few_bits = operation.few_bits if message.is_own else None
            if former is None or not message.repeats(former):
                pieces = _packed(message) if few_bits is None else few_bits.pack(message)
            former = message
            header = FrameHeader(
                self._identity.sender,
                operation.key.range(message.start, message.stop - message.start),
                SparseMessage(message.round, operation.key.number),
                Encoding.SPARSE,
                ValueType.FP32 if few_bits is None else few_bits.pieces.value_type,
                selected=len(message.indices),
            )
            operation.sent_bytes += sum(piece.nbytes for piece in pieces)
            self._send(message.to, header, pieces)

    def decode(self, operation: SparseOperation, frame: Frame) -> Message:
        """Unpack a frame."""
        header, pieces = frame.header, None if operation.few_bits is None else operation.few_bits.pieces
        known = {ValueType.FP32} if pieces is None else {ValueType.FP32, pieces.value_type}
        if header.sender.rank is None or header.value_type not in known:
            expected = " or ".join(sorted(each.label for each in known))
            seen = f"sparse frame of {header.sender.label} with {header.value_type.label} values"
            raise FrameError(f"{seen}: expected {expected} ones")
        start, stop = header.address.offset, header.address.offset + header.address.elements
        indices = np.empty(header.selected, dtype=np.int32)
        try:
            if pieces is not None and header.value_type is pieces.value_type:
                values = pieces.decode(frame, indices, start, stop)
            else:
                values = frame.values
                unpack(frame.sections, _bounds(start, stop), len(indices), indices)
        except ValueError as error:
            raise FrameError(f"sparse frame of {header.sender.label}: {error}") from None
        number = header.expect(SparseMessage).round
        return Message(self._identity.rank, header.sender.rank, number, indices, values, start, stop)


def _packed(message: Message) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    count = len(message.indices)
    values = np.empty(count, dtype=np.float32)
    sections = np.empty(packed_bound(count, 1), dtype=np.uint8)
    _, size = pack(message.indices, message.values, _bounds(message.start, message.stop), values, sections)
    return values, sections[:size]


def _bounds(start: int, stop: int) -> NDArray[np.int64]:
    return np.array([[start, stop]], dtype=np.int64)
