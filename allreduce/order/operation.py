"""One collective operation on one rank: an arena, the schedule that moves its parts, and what is told of progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import Address, At, FrameHeader, ValueType
from taihu.core.wire.frames.kinds import RingSegment, SparseMessage
from taihu.kernels.base.half import add_half, scale_half
from taihu.kernels.sums import ReduceKind

Values = NDArray[Any]
IsFailed = Callable[[], BaseException | None]
"""Asked for by who waits: the error that ends the wait, if there is one."""


class OperationKey(NamedTuple):
    """The operation that a frame belongs to: the group of a step, or the number of a call (`At` says when).

    Several operations of one group have different numbers: the parts that are summed when compressed, and the gathers
    of its parameters, which count from 1.
    """

    at: At
    group: int
    number: int = 0

    @classmethod
    def of(cls, header: FrameHeader) -> OperationKey:
        """The key of the operation that a frame belongs to."""
        address, number = header.address, 0
        match header.kind:
            case RingSegment(gather=number) | SparseMessage(part=number):
                pass
        return cls(address.at, address.group, number)

    def range(self, offset: int, count: int) -> Address:
        """The address of a range of what the operation works on."""
        return Address(self.at, self.group, offset, count)


class Action(Enum):
    """The action of a rank on a segment that has arrived."""

    ADD = "add"
    """Add it to the own values."""
    COMPLETE = "complete"
    """Add it to the own values; the sum of all ranks is then complete."""
    REPLACE = "replace"
    """Replace the own values by it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a chunk at one of its hops; `frame.pieces` are its ranges of the arena."""

    hop: int
    frame: FrameSpec


@dataclass(frozen=True, slots=True)
class Arrival:
    """The segment that has arrived, what to do with it, and after that which one to send on, if any."""

    segment: Segment
    action: Action
    forward: Segment | None


class Schedule(Protocol):
    """The sends and actions of a rank, see `taihu.allreduce.ring.schedule`."""

    @property
    def done(self) -> bool:
        """Whether everything has arrived."""
        ...

    def first_segments(self) -> Sequence[Segment]:
        """Segments that are sent before anything has arrived."""
        ...

    def is_result(self, hop: int) -> bool:
        """Whether what is sent at a hop is complete."""
        ...

    def replaces(self, hop: int, offset: int, count: int) -> Segment | None:
        """The segment, if it is the next one and replaces the own values."""
        ...

    def arrive(self, hop: int, offset: int, count: int) -> Arrival:
        """Take notice of a segment; raises FrameError when it is not the next one."""
        ...


def _untold(frame: FrameSpec) -> None:
    """Nobody wants to know."""


def _unheard(frames: Sequence[FrameSpec]) -> None:
    """Nobody wants to know."""


def merged(operation: Operation, arrival: Arrival, values: Values) -> None:
    """Add or write what has arrived: `values`, shape (n,), into the places of the segment."""
    taken = 0
    for own in operation.views(arrival.segment):
        part = values[taken : taken + len(own)]
        taken += len(own)
        if arrival.action is Action.REPLACE:
            np.copyto(own, part)
        else:
            _add_values(part, own, operation.value_type)
        if arrival.action is Action.COMPLETE and operation.scale != 1.0:
            _scale_values(own, operation.scale, operation.value_type)


@dataclass
class Operation:
    """An arena of which some ranges are reduced or filled in place; one thread at a time calls `take`.

    Attributes:
        key: the same on all ranks.
        values: shape (n,), of the dtype of `value_type`, contiguous and writable.
        value_type: of the values.
        schedule: this rank's.
        results: like `values`, where the results of all parts lie, if not there: `on_complete` puts those there that
            are summed here, and the others are received there.
        scale: what complete sums are multiplied by.
        on_complete: called with every part whose sum this rank completes, before it is sent on.
        on_final: called with parts of the arena that hold the result, one or more; parts do not overlap.
        on_finished: called when the result is complete and everything has been sent on.
        merge: takes in a segment; `merged`, or what it would cost where numbers do not matter.
        finished: whether that was so.
        sent_bytes, received_bytes: of values.
    """

    key: OperationKey
    values: Values
    value_type: ValueType
    schedule: Schedule
    results: Values | None = None
    scale: float = 1.0
    on_complete: Callable[[FrameSpec], None] = _untold
    on_final: Callable[[Sequence[FrameSpec]], None] = _unheard
    on_finished: Callable[[], None] = lambda: None
    merge: Callable[[Operation, Arrival, Values], None] = merged
    finished: bool = field(default=False, init=False)
    sent_bytes: int = field(default=0, init=False)
    received_bytes: int = field(default=0, init=False)

    @property
    def is_summed_at_once(self) -> bool:
        """Whether nothing is done with a part before its sum goes on, and the result lies where the values do."""
        return self.on_complete is _untold and self.results is None

    @property
    def is_told_at_end(self) -> bool:
        """Whether nobody hears of parts at all."""
        return self.on_complete is _untold and self.on_final is _unheard

    def views(self, segment: Segment) -> list[Values]:
        """The ranges of memory that a segment is sent from or received in, in order."""
        arena = self.values
        if self.results is not None and self.schedule.is_result(segment.hop):
            arena = self.results
        return list(map(arena.__getitem__, segment.frame.slices))

    def places(self, header: FrameHeader) -> Sequence[Values] | None:
        """The place where a frame's values may be received without a copy, if they may."""
        hop, address = header.expect(RingSegment).hop, header.address
        segment = self.schedule.replaces(hop, address.offset, address.elements)
        if segment is None or header.value_type is not self.value_type or len(segment.frame.pieces) != 1:
            return None
        return self.views(segment)

    def take(self, header: FrameHeader, values: Values, *, in_place: bool = False) -> Segment | None:
        """Add or write what has arrived; returns what is to be sent on, if anything.

        With `in_place`, `values` are those of `places(header)`.

        Raises:
            FrameError: the frame is not the next of its hop, or has other values.
        """
        if header.value_type is not self.value_type:
            raise FrameError(
                f"operation {self.key.group} of step {self.key.at.step}: expected {self.value_type.label} values, "
                f"got {header.value_type.label} ones"
            )
        address = header.address
        arrival = self.schedule.arrive(header.expect(RingSegment).hop, address.offset, address.elements)
        self.received_bytes += values.nbytes
        if not in_place:
            self.merge(self, arrival, values)
        if arrival.action is Action.COMPLETE:
            self.on_complete(arrival.segment.frame)
        if arrival.action is not Action.ADD:
            self.on_final([arrival.segment.frame])
        return arrival.forward

    def finish_alone(self, frames: Sequence[FrameSpec]) -> None:
        """The only rank's own values are the result."""
        for frame in frames:
            for piece in frame.pieces:
                if self.scale != 1.0:
                    _scale_values(self.values[piece.start : piece.stop], self.scale, self.value_type)
            self.on_complete(frame)
        self.on_final(frames)


def _add_values(values: NDArray[Any], out: NDArray[Any], value_type: ValueType) -> None:
    """Add `values` to `out`, both of shape (n,) and of the type's dtype; 16-bit sums are rounded from fp32."""
    kind = value_type.half_kind
    if kind is None:
        np.add(out, values, out=out)
    else:
        add_half(values, kind, out)


def _scale_values(values: NDArray[Any], factor: float, value_type: ValueType) -> None:
    """Multiply `values` (shape (n,), the type's dtype) by `factor` in place."""
    kind = value_type.half_kind
    if kind is None:
        np.multiply(values, values.dtype.type(factor), out=values)
    else:
        scale_half(values, kind, factor)


def reduce_kind(value_type: ValueType) -> ReduceKind:
    """The type's name in `taihu.kernels.sums`."""
    kinds: dict[ValueType, ReduceKind] = {
        ValueType.FP32: "fp32",
        ValueType.FP64: "fp64",
        ValueType.FP16: "fp16",
        ValueType.BF16: "bf16",
    }
    return kinds[value_type]
