"""Kinds of frames: what each says beside its address, and how it may have its values. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeVar

from taihu.core.base.errors import FrameError

__all__ = [
    "ActivationPart",
    "Encoding",
    "Farewell",
    "Gradients",
    "K",
    "Kind",
    "Parameters",
    "Question",
    "Rates",
    "RingSegment",
    "SparseMessage",
    "Summed",
]


class Encoding(Enum):
    """The way in which a frame has its values; the numbers are those of `Encoding` in `protos/tensor.proto`."""

    DENSE = 0
    """A value for every element."""
    SPARSE = 1
    """The selected values, and the sections that say where they belong (`taihu.kernels.packing.pack`)."""
    SHARED = 2
    """None in the frame: they lie in memory that both sides map."""
    NONE = 3
    """None at all."""


_DENSE = frozenset((Encoding.DENSE,))
_ANY_VALUES = frozenset((Encoding.DENSE, Encoding.SPARSE, Encoding.SHARED))


@dataclass(frozen=True, slots=True)
class Gradients:
    """A worker pushes its gradients to a server.

    In mixed precision they were multiplied by `loss_scale` before they became 16-bit values, and `skipped` says that
    gradients of the step do not fit.
    """

    loss_scale: float = 1.0
    skipped: bool = False
    label: ClassVar[str] = "gradients"
    encodings: ClassVar[frozenset[Encoding]] = _ANY_VALUES

    def __post_init__(self) -> None:
        if not 0.0 < self.loss_scale < math.inf:
            raise FrameError(f"gradients with loss scale {self.loss_scale}: expected a finite, positive one")


@dataclass(frozen=True, slots=True)
class Rates:
    """A worker tells a server the learning rates of a step, before its gradients: 64 bits for each parameter group.

    Without values it takes part by the rates of the others.
    """

    label: ClassVar[str] = "learning rates"
    encodings: ClassVar[frozenset[Encoding]] = frozenset((Encoding.DENSE, Encoding.NONE))


@dataclass(frozen=True, slots=True)
class Question:
    """A worker asks a server for the parameters as they are after the step."""

    label: ClassVar[str] = "a question"
    encodings: ClassVar[frozenset[Encoding]] = frozenset((Encoding.NONE,))


@dataclass(frozen=True, slots=True)
class Summed:
    """A server has summed the gradients of all workers: what came of it, or nothing where it is to be asked for.

    The sum was complete at `completed_s`, in seconds of the server's monotonic clock; with `skipped` nothing was
    changed by it.
    """

    completed_s: float = 0.0
    skipped: bool = False
    label: ClassVar[str] = "an answer"
    encodings: ClassVar[frozenset[Encoding]] = frozenset(Encoding)

    def __post_init__(self) -> None:
        if not math.isfinite(self.completed_s):
            raise FrameError(f"an answer of {self.completed_s} s: expected a finite time")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters as they are after the step: the initial ones, and those that were asked for."""

    label: ClassVar[str] = "parameters"
    encodings: ClassVar[frozenset[Encoding]] = _DENSE


@dataclass(frozen=True, slots=True)
class RingSegment:
    """A segment of a chunk, sent on `hop` times since its first sender.

    Of a group of a step, `gather` is 0 where gradients are summed, and n where parameters are gathered for the n-th
    time after the step.
    """

    hop: int
    gather: int = 0
    label: ClassVar[str] = "a segment of a ring"
    encodings: ClassVar[frozenset[Encoding]] = _DENSE


@dataclass(frozen=True, slots=True)
class ActivationPart:
    """A part of what one worker sends to another in a transfer, in one of `frames` frames."""

    frames: int
    label: ClassVar[str] = "a part of a transfer"
    encodings: ClassVar[frozenset[Encoding]] = _DENSE


@dataclass(frozen=True, slots=True)
class SparseMessage:
    """A message of a round of the sparse allreduce that sums part `part` of the plan."""

    round: int
    part: int = 0
    label: ClassVar[str] = "a sparse message"
    encodings: ClassVar[frozenset[Encoding]] = frozenset((Encoding.SPARSE,))


@dataclass(frozen=True, slots=True)
class Farewell:
    """The last word of a worker: why it gives up, to another worker, or that it leaves in good order."""

    failure: str = ""
    label: ClassVar[str] = "a farewell"
    encodings: ClassVar[frozenset[Encoding]] = frozenset((Encoding.NONE,))


Kind = Gradients | Rates | Question | Summed | Parameters | RingSegment | ActivationPart | SparseMessage | Farewell
K = TypeVar(
    "K",
    Gradients,
    Rates,
    Question,
    Summed,
    Parameters,
    RingSegment,
    ActivationPart,
    SparseMessage,
    Farewell,
)
