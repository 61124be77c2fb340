"""The way of a frame that all workers have brought: sum, update, and the answer to all of them.

An answer has all parameters of the frame, or those that changed. In stage 0 of ZeRO a server keeps sums in the place
of parameters, and these go back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.core.checkpoint.part import named
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.optimization import OptimizerShard, RuledShard, StepRates, SumShard, in_steps
from taihu.core.planner.partition import FrameSpec, Shard
from taihu.core.system.queues import Empty, SimpleQueue
from taihu.core.wire.frames.headers import FrameHeader, ValueType
from taihu.core.wire.frames.kinds import Encoding
from taihu.core.wire.links.outbox import OutgoingFrame
from taihu.kernels.base.half import HalfKind, to_half
from taihu.kernels.packing import pack
from taihu.kernels.packing.few_bits import STEP_BYTES, pack_codes
from taihu.kernels.reduce import warm_up
from taihu.kernels.selection.scatter import gather, scatter_assign
from taihu.kernels.selection.select import clear
from taihu.ps_server.aggregator import Complete
from taihu.ps_server.squeezing import OnSqueezed, make_summing
from taihu.ps_server.summing import Contribution, DenseSum, Scratch, SparseSum, Summing, Total

Values = NDArray[np.float32]


class Answer(OutgoingFrame):
    """A frame that is sent to one worker, or to all.

    `pieces` may be views of the parameters: a range changes only after every worker, having pulled it, has pushed it
    for the next step.
    """

    @property
    def moved_bytes(self) -> int:
        """Bytes that the answer moves, see `Frame.moved_bytes`."""
        moved = self.header.shared_bytes
        for piece in self.pieces:
            moved += piece.nbytes
        return moved

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


class FrameWay(Protocol):
    """The way of a frame that all workers have brought; threads call for different frames at the same time."""

    def sum(self, complete: Complete[Contribution], scratch: Scratch) -> Total | None:
        """The sum of the frame, which is valid as long as `scratch` is; None where its step is skipped."""

    def update(
        self, complete: Complete[Contribution], total: Total | None, header: FrameHeader, scratch: Scratch
    ) -> None:
        """Update the frame's parameters by its sum, and have ready what it is answered with, under `header`."""


class FrameUpdates(FrameWay):
    """Sums frames and updates the `parameters` of a shard by them, shape (n,), fp32; kept, not copied.

    Args:
        job: of the run.
        plan: the run's first one.
        partition: what the parameters are of the layout.
        parameters: the initial ones.
        rates: of the present step, where a script's optimizer updates.
        on_squeezed: is told of sums that are compressed again, or rounded.

    Attributes:
        summing: decodes what workers send.
        answering: makes the answers, by the present plan.
    """

    def __init__(  # noqa: PLR0917 - one of each
        self,
        job: Job,
        plan: Plan,
        partition: Shard,
        parameters: Values,
        rates: StepRates | None = None,
        on_squeezed: OnSqueezed | None = None,
    ) -> None:
        self._job = job
        self._parameters = parameters
        self._answers_dense = job.downlink == "dense"
        self._optimizer = _optimizer_of(job, plan, partition, parameters, rates)
        self.summing: Summing[Any] = make_summing(job, parameters, on_squeezed)
        self.adopt(plan, partition.frames(plan.groups, plan.frame_elements))

    def adopt(self, plan: Plan, frames: Sequence[FrameSpec]) -> None:
        """Go on by another plan, whose frames these are; nothing is under way."""
        self.summing.adopt(frames)
        self.answering = make_answering(self._job, self._parameters)
        self._room = (
            max((frame.count for frame in frames), default=0),
            max((len(f.pieces) for f in frames), default=0),
        )
        # As many as were ever used at once, not one for each thread.
        self._free: SimpleQueue[Scratch] = SimpleQueue()

    def warm_up(self) -> None:
        """Compile the kernels that updates will use, or load them from the disk cache."""
        self._optimizer.warm_up()
        warm_up()

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, or in stage 0 of ZeRO sums, optimizer state, and what answers are made from."""
        return self._parameters.nbytes + self._optimizer.state_bytes + self.answering.state_bytes

    def state(self) -> dict[str, NDArray[Any]]:
        """Live views of all that outlasts a step, by name; none where workers have all there is."""
        if isinstance(self._optimizer, SumShard):
            return {}
        return {**named(self._parameters, self._optimizer.state()), **self.summing.state()}

    def borrow(self) -> Scratch:
        """Scratch that nobody else uses until `give_back`; what failed does not give it back."""
        try:
            return self._free.get_nowait()
        except Empty:
            return Scratch(*self._room, few_bits=self._job.compression.rounds_sums)

    def give_back(self, scratch: Scratch) -> None:
        """The scratch is not used any more."""
        self._free.put(scratch)

    @override
    def sum(self, complete: Complete[Contribution], scratch: Scratch) -> Total | None:
        return self.summing.sum(complete.frame, complete.at.step, complete.contributions, scratch)

    @override
    def update(
        self, complete: Complete[Contribution], total: Total | None, header: FrameHeader, scratch: Scratch
    ) -> None:
        if total is None:
            return
        frame, step = complete.frame, complete.at.step
        start, stop = frame.offset, frame.offset + frame.count
        scale = 1.0 / len(complete.contributions)
        if isinstance(total, DenseSum):
            self._optimizer.update(start, stop, total.values, step, scale=scale / total.loss_scale)
        elif self._answers_dense:
            values = _spread(frame, total, scratch)
            self._optimizer.update(start, stop, values, step, scale=scale)
            clear(values, total.indices)
        else:
            self._optimizer.update_sparse(total.indices, total.values, step, scale=scale)
        self.answering.updated(frame, total, header, scratch)


def _optimizer_of(
    job: Job, plan: Plan, partition: Shard, parameters: Values, rates: StepRates | None
) -> OptimizerShard | RuledShard | SumShard:
    if not job.stage.divides_optimizer:
        return SumShard(parameters, scales=job.train.precision != "fp32")
    if plan.updates is not None and rates is not None:
        return RuledShard(plan.updates, partition.offsets, parameters, rates)
    return OptimizerShard(in_steps(job.server_optimizer, plan.length), parameters)


def _spread(frame: FrameSpec, total: SparseSum, scratch: Scratch) -> Values:
    """The sum with a value for every element; the indices of `total` count from the frame's start then."""
    np.subtract(total.indices, np.int32(frame.offset), out=total.indices)
    values = scratch.total[: frame.count]
    scatter_assign(total.indices, total.values, values)
    return values
