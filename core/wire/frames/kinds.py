"""Kinds of frames: the words of each beside its address, and the encodings that it may have. Pure.

A kind has a `number` on the wire. Its fields are packed in their order by `form`, in the notation of `struct`, into
at most `UNION_BYTES` bytes of a header, and `MAKERS` make the kind of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Self, TypeVar

from taihu.core.base.errors import FrameError

UNION_BYTES: Final = 12
"""Bytes of a header that belong to its kind."""


class Encoding(Enum):
    """The way in which a frame has its values; the numbers are those on the wire."""

    DENSE = 0
    """A value for every element."""
    SPARSE = 1
    """The selected values, and the sections that say where they belong (`taihu.kernels.packing.sections`)."""
    SHARED = 2
    """None in the frame: they lie in memory that both sides map."""
    NONE = 3
    """None at all."""
    TEXT = 4
    """Words in the place of values: as many bytes of UTF-8 as are selected."""


MOST_AHEAD: Final = 0xFFFF
"""The most steps that an answer can say to be ahead."""

_DENSE = frozenset((Encoding.DENSE,))
_NONE = frozenset((Encoding.NONE,))
_ANY_VALUES = frozenset((Encoding.DENSE, Encoding.SPARSE, Encoding.SHARED))


@dataclass(frozen=True, slots=True)
class Gradients:
    """A worker pushes its gradients to a server.

    In mixed precision they were multiplied by `loss_scale` before they became 16-bit values, and `skipped` says that
    gradients of the step do not fit.
    """

    loss_scale: float = 1.0
    skipped: bool = False
    number: ClassVar[int] = 1
    form: ClassVar[str] = "fB"
    label: ClassVar[str] = "gradients"
    encodings: ClassVar[frozenset[Encoding]] = _ANY_VALUES

    def __post_init__(self) -> None:
        if not 0.0 < self.loss_scale < math.inf:
            raise FrameError(f"gradients with loss scale {self.loss_scale}: expected a finite, positive one")

    @classmethod
    def of(cls, loss_scale: float, skipped: float) -> Self:
        """Gradients with these fields."""
        return cls(loss_scale, _flag(skipped))


@dataclass(frozen=True, slots=True)
class Question:
    """A worker asks a server for the parameters as they are after the step."""

    number: ClassVar[int] = 2
    form: ClassVar[str] = ""
    label: ClassVar[str] = "a question"
    encodings: ClassVar[frozenset[Encoding]] = _NONE


@dataclass(frozen=True, slots=True)
class Summed:
    """A server has summed the gradients of all workers: what came of it, or nothing where it is to be asked for.

    The sum was complete at `completed_s`, in seconds of the server's monotonic clock; with `skipped` nothing was
    changed by it. The parameters are those of `ahead` steps later, where a step does not wait for all workers.
    """

    completed_s: float = 0.0
    skipped: bool = False
    ahead: int = 0
    number: ClassVar[int] = 3
    form: ClassVar[str] = "dBH"
    label: ClassVar[str] = "an answer"
    encodings: ClassVar[frozenset[Encoding]] = _ANY_VALUES | _NONE

    def __post_init__(self) -> None:
        if not math.isfinite(self.completed_s):
            raise FrameError(f"an answer of {self.completed_s} s: expected a finite time")

    @classmethod
    def of(cls, completed_s: float, skipped: float, ahead: int) -> Self:
        """An answer with these fields."""
        return cls(completed_s, _flag(skipped), ahead)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters as they are after the step: the initial ones, and those that were asked for."""

    number: ClassVar[int] = 4
    form: ClassVar[str] = ""
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
    number: ClassVar[int] = 5
    form: ClassVar[str] = "II"
    label: ClassVar[str] = "a segment of a ring"
    encodings: ClassVar[frozenset[Encoding]] = _DENSE


@dataclass(frozen=True, slots=True)
class ActivationPart:
    """A part of what one worker sends to another in a transfer, in one of `frames` frames."""

    frames: int
    number: ClassVar[int] = 6
    form: ClassVar[str] = "I"
    label: ClassVar[str] = "a part of a transfer"
    encodings: ClassVar[frozenset[Encoding]] = _DENSE


@dataclass(frozen=True, slots=True)
class SparseMessage:
    """A message of a round of the sparse allreduce that sums part `part` of the plan."""

    round: int
    part: int = 0
    number: ClassVar[int] = 7
    form: ClassVar[str] = "II"
    label: ClassVar[str] = "a sparse message"
    encodings: ClassVar[frozenset[Encoding]] = frozenset((Encoding.SPARSE,))


@dataclass(frozen=True, slots=True)
class Farewell:
    """The last word of a worker: it leaves in good order or, with a text, says why it gives up."""

    number: ClassVar[int] = 8
    form: ClassVar[str] = ""
    label: ClassVar[str] = "a farewell"
    encodings: ClassVar[frozenset[Encoding]] = frozenset((Encoding.NONE, Encoding.TEXT))


@dataclass(frozen=True, slots=True)
class Rates:
    """A worker tells a server the learning rates of a step, before its gradients: 64 bits for each parameter group.

    Without values it takes part by the rates of the others.
    """

    number: ClassVar[int] = 12
    form: ClassVar[str] = ""
    label: ClassVar[str] = "learning rates"
    encodings: ClassVar[frozenset[Encoding]] = _DENSE | _NONE


Kind = Gradients | Question | Summed | Parameters | RingSegment | ActivationPart | SparseMessage | Farewell | Rates
K = TypeVar("K", Gradients, Question, Summed, Parameters, RingSegment, ActivationPart, SparseMessage, Farewell, Rates)
KINDS: Final[Mapping[int, type[Kind]]] = {
    kind.number: kind
    for kind in (
        Gradients,
        Question,
        Summed,
        Parameters,
        RingSegment,
        ActivationPart,
        SparseMessage,
        Farewell,
        Rates,
    )
}
"""All kinds by their numbers."""

MAKERS: Final[Mapping[int, Callable[..., Kind]]] = {
    **KINDS,
    Gradients.number: Gradients.of,
    Summed.number: Summed.of,
}
"""Makers of each kind of its fields, by its number; they raise ValueError or FrameError where these make no sense."""


def _flag(value: float) -> bool:
    if value not in (0, 1):
        raise ValueError(value)
    return bool(value)
