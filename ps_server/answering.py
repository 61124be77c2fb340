"""Answers to a frame that was updated: all of its parameters, or those that changed.

In stage 0 of ZeRO a server keeps sums in the place of parameters, and these go back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.core.job import Job
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import FrameHeader, ValueType
from taihu.core.wire.frames.kinds import Encoding
from taihu.core.wire.links.outbox import OutgoingFrame
from taihu.kernels.base.half import HalfKind, to_half
from taihu.kernels.packing.few_bits import STEP_BYTES, pack_codes
from taihu.kernels.packing.pack import pack
from taihu.kernels.selection.scatter import gather
from taihu.ps_server.summing import Scratch, SparseSum, Total

__all__ = ["Answer", "Answering", "make_answering"]

Values = NDArray[np.float32]


class Answer(OutgoingFrame):
    """A frame that is sent to one worker, or to all.

    `pieces` may be views of the parameters: a range changes only after every worker, having pulled it, has pushed it
    for the next step.
    """

    @property
    def moved_bytes(self) -> int:
        """Bytes that the answer moves, see `Frame.moved_bytes`."""
        return sum(piece.nbytes for piece in self.pieces) + self.header.shared_bytes

    @cached_property
    def shared(self) -> Answer:
        """The same answer to a worker that has the parameters mapped."""
        return Answer(replace(self.header, encoding=Encoding.SHARED), ())


class Answering(ABC):
    """Makes the answers from `parameters`, shape (n,), fp32: the shard's, kept, changed only as `updated` is told."""

    state_bytes = 0
    """Bytes that answers are made from, beside the parameters."""

    def __init__(self, parameters: Values) -> None:
        self._parameters = parameters

    def parameters(self, frame: FrameSpec) -> NDArray[Any]:
        """The frame's present parameters as they are sent to whoever asks, shape (frame.count,)."""
        return self._parameters[frame.offset : frame.offset + frame.count]

    @abstractmethod
    def updated(self, frame: FrameSpec, total: Total, header: FrameHeader, scratch: Scratch) -> None:
        """The frame's parameters have been updated by `total`; what else is in `scratch` may be overwritten."""

    @abstractmethod
    def answer(self, frame: FrameSpec, header: FrameHeader) -> Answer:
        """The answer to the last step of `frame`, which may have been skipped."""


class AllParameters(Answering):
    """All parameters of the frame, or none where workers ask for them when they need them."""

    @override
    def updated(self, frame: FrameSpec, total: Total, header: FrameHeader, scratch: Scratch) -> None:
        pass

    @override
    def answer(self, frame: FrameSpec, header: FrameHeader) -> Answer:
        return Answer(header, (self.parameters(frame),) if header.is_dense else ())


class HalfParameters(AllParameters):
    """All parameters in 16 bits; those of the shard are their fp32 master."""

    def __init__(self, parameters: Values, kind: HalfKind) -> None:
        super().__init__(parameters)
        self._kind = kind
        self._codes = np.empty(len(parameters), dtype=np.uint16)
        self.state_bytes = self._codes.nbytes
        to_half(parameters, kind, self._codes)

    @override
    def parameters(self, frame: FrameSpec) -> NDArray[Any]:
        return self._codes[frame.offset : frame.offset + frame.count]

    @override
    def updated(self, frame: FrameSpec, total: Total, header: FrameHeader, scratch: Scratch) -> None:
        to_half(super().parameters(frame), self._kind, self.parameters(frame))


class ChangedParameters(Answering):
    """The parameters that changed; the last answers are kept, because nothing else tells which they were."""

    def __init__(self, parameters: Values) -> None:
        super().__init__(parameters)
        self._answers: dict[int, Answer] = {}

    @override
    def updated(self, frame: FrameSpec, total: Total, header: FrameHeader, scratch: Scratch) -> None:
        if not isinstance(total, SparseSum):
            raise TypeError("an answer with the parameters that changed: expected to know which they were")
        values = scratch.values[: len(total.indices)]
        gather(self._parameters, total.indices, values)
        count, size = pack(total.indices, values, frame.shard_bounds, scratch.packed, scratch.sections)
        pieces = (scratch.packed[:count].copy(), scratch.sections[:size].copy())
        self._answers[frame.offset] = Answer(replace(header, encoding=Encoding.SPARSE, selected=count), pieces)

    @override
    def answer(self, frame: FrameSpec, header: FrameHeader) -> Answer:
        return self._answers[frame.offset]


class RoundedSums(ChangedParameters):
    """Sums of a few bits, by which workers update as the server has; in stage 0 of ZeRO all there is."""

    def __init__(self, parameters: Values, value_type: ValueType) -> None:
        super().__init__(parameters)
        self._value_type = value_type

    @override
    def updated(self, frame: FrameSpec, total: Total, header: FrameHeader, scratch: Scratch) -> None:
        if not isinstance(total, SparseSum) or total.codes is None:
            raise TypeError("an answer with values of a few bits: expected their codes")
        codes, steps = total.codes.codes, total.codes.steps
        own = scratch.packed.view(np.uint8)
        steps_bytes = len(steps) * STEP_BYTES
        count, size = pack(total.indices, codes, frame.shard_bounds, own, scratch.sections[steps_bytes:])
        to_half(steps, "bf16", scratch.sections[:steps_bytes].view(np.uint16))
        packed = pack_codes(own[:count], self._value_type.few_bits, own)
        pieces = (own[:packed].copy(), scratch.sections[: steps_bytes + size].copy())
        header = replace(header, encoding=Encoding.SPARSE, value_type=self._value_type, selected=count)
        self._answers[frame.offset] = Answer(header, pieces)


def make_answering(job: Job, parameters: Values) -> Answering:
    """The way that the job's parameters come back."""
    if (kind := ValueType.named(job.train.precision).half_kind) is not None:
        return HalfParameters(parameters, kind)
    if job.downlink == "dense":
        return AllParameters(parameters)
    if job.compression.rounds_sums:
        return RoundedSums(parameters, ValueType.named(job.compression.downlink_value_type))
    return ChangedParameters(parameters)
