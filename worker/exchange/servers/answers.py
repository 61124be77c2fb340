"""Answers of a server: how far frames may be ahead of them, which are expected, and where they belong."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError
from taihu.core.optimization import OptimizerShard
from taihu.core.planner.partition import FrameSpec, Framing
from taihu.core.wire.frames.headers import At, Frame, FrameHeader, ValueType, dense_values, selected_values
from taihu.core.wire.frames.kinds import Encoding, Summed
from taihu.kernels.selection.scatter import scatter_assign
from taihu.worker.exchange.base.updates import Updates

Values = NDArray[np.float32]
Item = TypeVar("Item")


class FramesUnderWay(Generic[Item]):
    """Frames that one worker has pushed to one server, and those it wants to read as soon as they have been answered.

    Items go in the order in which they come, at most `window` of them ahead of their answers (ADR 3), beside those
    that are not `windowed`.
    """

    def __init__(self, window: int) -> None:
        self._room = window
        self._waiting: deque[Item] = deque()
        self._unanswered: set[int] = set()
        self._wanted: dict[int, FrameSpec] = {}

    def push(self, offset: int, item: Item, *, windowed: bool = True) -> bool:
        """The frame at `offset` is to go, as `item`; returns whether it may now, or else waits for an answer."""
        self._unanswered.add(offset)
        if not windowed:
            return True
        if self._room:
            self._room -= 1
            return True
        self._waiting.append(item)
        return False

    def ask(self, frames: Iterable[FrameSpec]) -> list[FrameSpec]:
        """The parameters of `frames` are wanted; returns those that may be asked for now, the others wait."""
        now = []
        for frame in frames:
            if frame.offset in self._unanswered:
                self._wanted[frame.offset] = frame
            else:
                now.append(frame)
        return now

    def answered(self, offset: int, *, windowed: bool = True) -> tuple[FrameSpec | None, Item | None]:
        """The frame at `offset` has been answered; returns what to ask for, and what may go, now, if anything."""
        self._unanswered.discard(offset)
        wanted = self._wanted.pop(offset, None)
        if windowed:
            if self._waiting:
                return wanted, self._waiting.popleft()
            self._room += 1
        return wanted, None


class ServerAnswers:
    """The answers of one server, which messages call `peer`, to the frames of one plan and step at a time.

    They are those of `framing`, of plan number `plan`. Dense ones have values of `value_type`, sparse ones those of
    `selected_type`. `shared` are the server's own parameters, where this process has them mapped.
    """

    def __init__(  # noqa: PLR0917 - one of each
        self,
        peer: str,
        updates: Updates,
        value_type: ValueType,
        framing: Framing,
        plan: int,
        selected_type: ValueType = ValueType.FP32,
    ) -> None:
        self._value_type, self._selected_type = value_type, selected_type
        self.shared: Values | None = None
        self._peer = peer
        self._updates = updates
        self._positions: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._framing = framing
        self._plan = plan
        self._step = self._attempt = 0
        self._asked: dict[int, int] = {}

    def adopt(self, framing: Framing, plan: int) -> None:
        """Expect answers to the frames of plan number `plan`."""
        self._framing = framing
        self._plan = plan

    def begin(self, at: At) -> None:
        """Expect answers to what is pushed in `at`."""
        self._step, self._attempt = at.step, at.attempt

    def cancel(self) -> None:
        """Expect nothing of the present attempt any more; an answer that is being taken may still end."""
        self._attempt += 1

    def forget(self) -> None:
        """Nothing that was asked for before comes any more, and none of it is being taken."""
        self._asked.clear()

    def is_present(self, header: FrameHeader) -> bool:
        """Whether an answer is not of an earlier attempt."""
        return header.address.at.attempt >= self._attempt

    def expect(self, frame: FrameSpec, step: int) -> None:
        """Expect the parameters of `frame` as they are after `step`: they have been asked for."""
        self._asked[frame.offset] = step

    def places(self, header: FrameHeader) -> list[NDArray[Any]]:
        """The places of a dense answer's values; `received` follows.

        Raises:
            FrameError: nobody asked for it.
        """
        return self._updates.places(self._find(header, self._value_type))

    def received(self, header: FrameHeader) -> None:
        """The places of a dense answer are filled."""
        frame = self._find(header, self._value_type)
        self._asked.pop(frame.offset, None)
        self._updates.received(frame, header.address.at.step, frame.group)

    def write(self, answer: Frame) -> None:
        """Take an answer of any kind.

        Raises:
            FrameError: nobody asked for it, or it is malformed.
        """
        header = answer.header
        match header.encoding:
            case Encoding.NONE:
                self._find(header)
            case Encoding.SHARED if self.shared is not None:
                frame = self._find(header)
                values = self.shared[frame.offset : frame.offset + frame.count]
                self._updates.write(frame, values, header.address.at.step)
            case Encoding.SPARSE:
                self._write_sparse(self._find(header), answer)
            case _:
                dense = dense_values(answer, self._value_type)
                frame = self._find(header, self._value_type)
                self._asked.pop(frame.offset, None)
                self._updates.write(frame, dense, header.address.at.step)

    def _find(self, header: FrameHeader, value_type: ValueType | None = None) -> FrameSpec:
        """The frame of an answer, whose values are of this type if one is named."""
        if value_type is not None and header.value_type is not value_type:
            raise FrameError(
                f"{self._peer} answered {header.value_type.label} parameters: expected {value_type.label}"
            )
        at, group, offset, count = header.address
        frame = self._framing.by_offset.get(offset)
        is_known = frame is not None and frame.group == group and frame.count == count
        if frame is None or not is_known or at.plan != self._plan:
            raise FrameError(
                f"{self._peer} answered plan {at.plan}, group {group}, offset {offset}, {count} values: not a frame "
                f"of plan {self._plan}"
            )
        if isinstance(header.kind, Summed):
            if at.step != self._step:
                raise FrameError(f"{self._peer} answered step {at.step} during step {self._step}")
        elif at.step != self._asked.get(offset):
            seen = f"group {group}, offset {offset} after step {at.step}"
            raise FrameError(f"{self._peer} brought parameters of {seen}: not asked for")
        return frame

    def _write_sparse(self, frame: FrameSpec, answer: Frame) -> None:
        count = answer.header.selected
        if len(self._positions) < count:
            self._positions = np.empty(self._framing.largest, dtype=np.int32)
        positions = self._positions[:count]
        if answer.header.value_type is not self._selected_type:
            seen, expected = answer.header.value_type.label, self._selected_type.label
            raise FrameError(f"{self._peer} answered selected {seen} values: expected {expected}")
        try:
            values = selected_values(answer, positions, frame.arena_bounds)
        except ValueError as error:
            raise FrameError(f"{self._peer} answered group {frame.group}: {error}") from None
        self._updates.write_selected(frame, positions, values, answer.header.address.at.step)


class ByServers:
    """Servers update, and parameters come: into `parameters`, shape (elements,), of the dtype that travels."""

    def __init__(self, parameters: NDArray[Any]) -> None:
        self._parameters = parameters

    def places(self, frame: FrameSpec) -> list[NDArray[Any]]:
        """The frame's range of the parameters."""
        return list(map(self._parameters.__getitem__, frame.slices))

    def received(self, frame: FrameSpec, step: int, group: int) -> None:
        """Do nothing: the values are where they belong."""

    def write(self, frame: FrameSpec, values: NDArray[Any], step: int) -> None:
        """Copy what came."""
        taken = 0
        for place in map(self._parameters.__getitem__, frame.slices):
            # as bytes: NumPy copies these without regard to where `values` lie
            place.view(np.uint8)[:] = values[taken : taken + len(place)].view(np.uint8)
            taken += len(place)

    def write_selected(self, frame: FrameSpec, places: NDArray[np.int32], values: Values, step: int) -> None:
        """Put what came where it belongs; all else is as it was."""
        scatter_assign(places, values, self._parameters)


class BySums:
    """Servers update, and so do workers, by the sums of a few bits that come: the same bits everywhere.

    A part that was updated in a step is not updated in it again, whatever is replayed.

    Args:
        optimizer: of `parameters`, as servers have it, without state.
        parameters: shape (elements,), fp32.
        workers: whose mean is applied.
    """

    def __init__(self, optimizer: OptimizerShard, parameters: Values, workers: int) -> None:
        self._optimizer, self._scale = optimizer, 1.0 / workers
        self._whole = ByServers(parameters)
        self._updated: dict[int, int] = {}
        none = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
        optimizer.update_sparse(*none, step=1)  # compiled, or loaded, before the first step

    def places(self, frame: FrameSpec) -> list[NDArray[Any]]:
        """The frame's range of the parameters."""
        return self._whole.places(frame)

    def received(self, frame: FrameSpec, step: int, group: int) -> None:
        """Do nothing: the parameters are where they belong."""

    def write(self, frame: FrameSpec, values: NDArray[Any], step: int) -> None:
        """Copy parameters that came."""
        self._whole.write(frame, values, step)

    def write_selected(self, frame: FrameSpec, places: NDArray[np.int32], values: Values, step: int) -> None:
        """Update by sums at these places; all else is as it was."""
        if self._updated.get(frame.pieces[0].start) != step:
            self._updated[frame.pieces[0].start] = step
            self._optimizer.update_sparse(places, values, step, self._scale)
