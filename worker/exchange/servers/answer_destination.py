"""Where the values of dense answers go: into the parameters, or into an update of them (ZeRO stage 0)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.optimization import OptimizerShard
from taihu.planner.partition import FrameSpec

__all__ = ["AnswerDestination", "UpdatedHere", "WrittenHere"]

Values = NDArray[np.float32]


class AnswerDestination(ABC):
    """Frames are disjoint, so several threads may hand in different ones at a time."""

    @abstractmethod
    def places(self, frame: FrameSpec) -> list[NDArray[Any]]:
        """Where the frame's values may be received; `received` follows."""

    @abstractmethod
    def received(self, frame: FrameSpec, step: int) -> None:
        """The places of `frame` hold the answer to `step`."""

    @abstractmethod
    def write(self, frame: FrameSpec, values: NDArray[Any], step: int) -> None:
        """Take the answer to `step` from `values`, shape (frame.count,), of the dtype of what is exchanged."""


class WrittenHere(AnswerDestination):
    """Answers are parameters."""

    def __init__(self, parameters: NDArray[Any]) -> None:
        self._parameters = parameters

    def places(self, frame: FrameSpec) -> list[NDArray[Any]]:
        """See `AnswerDestination.places`."""
        return frame.views(self._parameters)

    def received(self, frame: FrameSpec, step: int) -> None:
        """See `AnswerDestination.received`."""

    def write(self, frame: FrameSpec, values: NDArray[Any], step: int) -> None:
        """See `AnswerDestination.write`."""
        taken = 0
        for place in frame.views(self._parameters):
            # as bytes: NumPy copies these without regard to where `values` lie
            place.view(np.uint8)[:] = values[taken : taken + len(place)].view(np.uint8)
            taken += len(place)


class UpdatedHere(AnswerDestination):
    """Answers are the sums of all workers' gradients, received over this worker's own, which have been sent."""

    def __init__(self, optimizer: OptimizerShard, gradients: Values, workers: int) -> None:
        self._optimizer = optimizer
        self._gradients = gradients
        self._scale = 1.0 / workers

    def places(self, frame: FrameSpec) -> list[NDArray[Any]]:
        """See `AnswerDestination.places`."""
        return frame.views(self._gradients)

    def received(self, frame: FrameSpec, step: int) -> None:
        """See `AnswerDestination.received`."""
        for piece in frame.ranges:
            gradient = self._gradients[piece.start : piece.stop]
            self._optimizer.update(piece.start, piece.stop, gradient, step, self._scale)

    def write(self, frame: FrameSpec, values: NDArray[Any], step: int) -> None:
        """See `AnswerDestination.write`."""
        taken = 0
        for piece in frame.ranges:
            count = piece.stop - piece.start
            gradient = values[taken : taken + count]
            self._optimizer.update(piece.start, piece.stop, gradient, step, self._scale)
            taken += count
