"""What a server answers: checked against the plan, and written into the parameter arena."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.pack import unpack
from kernels.scatter import scatter_assign
from taihu.errors import FrameError
from taihu.planner.partition import FrameSpec, Framing
from taihu.wire.codec import Frame, FrameHeader, ValueType, dense_values

__all__ = ["ServerAnswers"]

Values = NDArray[np.float32]


class ServerAnswers:
    """The answers of one server, which messages call `peer`, to the frames of one plan and step at a time.

    `shared` are the server's own parameters, where this process has them mapped.
    """

    def __init__(self, peer: str, job: str, parameters: Values) -> None:
        self.shared: Values | None = None
        self._peer = peer
        self._job = job
        self._parameters = parameters
        self._positions: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._framing: Framing | None = None
        self._plan = 0
        self._step = 0

    def adopt(self, framing: Framing, plan: int) -> None:
        """Expect answers to the frames of plan number `plan`."""
        self._framing = framing
        self._plan = plan

    def begin(self, step: int) -> None:
        """Expect answers to `step`."""
        self._step = step

    def places(self, header: FrameHeader) -> list[Values]:
        """Where the values of a dense answer belong.

        Raises:
            FrameError: nobody asked for it.
        """
        if header.value_type is not ValueType.FP32:
            raise FrameError(f"{self._peer} answered {header.value_type.label} parameters: expected float32")
        return self._find(header).views(self._parameters)

    def write(self, answer: Frame) -> None:
        """Write an answer of any kind.

        Raises:
            FrameError: nobody asked for it, or it is malformed.
        """
        frame = self._find(answer.header)
        if answer.header.shared and self.shared is not None:
            self.write_dense(frame, self.shared[frame.offset : frame.offset + frame.count])
        elif answer.header.selected is None:
            self.write_dense(frame, dense_values(answer))
        else:
            self._write_sparse(frame, answer)

    def write_dense(self, frame: FrameSpec, values: Values) -> None:
        """Write all `values` of `frame`."""
        taken = 0
        for place in frame.views(self._parameters):
            # as bytes: NumPy copies these without regard to where `values` lie
            place.view(np.uint8)[:] = values[taken : taken + len(place)].view(np.uint8)
            taken += len(place)

    def _find(self, header: FrameHeader) -> FrameSpec:
        assert self._framing is not None  # noqa: S101
        frame = self._framing.find(group=header.group, offset=header.offset, count=header.count)
        if frame is None or header.job != self._job or header.plan != self._plan:
            raise FrameError(
                f"{self._peer} answered job {header.job!r}, plan {header.plan}, group {header.group}, offset "
                f"{header.offset}, {header.count} values: not a frame of plan {self._plan}"
            )
        if header.step != self._step:
            raise FrameError(f"{self._peer} answered step {header.step} during step {self._step}")
        return frame

    def _write_sparse(self, frame: FrameSpec, answer: Frame) -> None:
        count = len(answer.values)
        if len(self._positions) < count:
            assert self._framing is not None  # noqa: S101
            self._positions = np.empty(self._framing.largest, dtype=np.int32)
        positions = self._positions[:count]
        try:
            unpack(answer.sections, frame.arena_bounds, count, positions)
        except ValueError as error:
            raise FrameError(f"{self._peer} answered group {frame.group}: {error}") from None
        if answer.header.value_type is not ValueType.FP32:
            raise FrameError(f"{self._peer} answered {answer.header.value_type.label} parameters: expected float32")
        scatter_assign(positions, answer.values, self._parameters)
