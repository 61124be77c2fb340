"""From the contributions to one frame to the answer: sum, update, and what of the parameters comes back.

Plain dense pull, and the safe sparse ones of methods section 1.6. Frames are disjoint, so different ones may be
applied at the same time from different threads; the result does not depend on which comes first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.half import HalfKind, to_half
from kernels.half_sums import sum_half_in_rank_order, warm_up
from kernels.pack import pack, packed_bound
from kernels.reduce import sum_in_rank_order
from kernels.scatter import gather, make_marks, scatter_assign, sum_sparse_in_rank_order
from kernels.select import clear
from ps_server.answer import Answer
from ps_server.contribution import Contribution, HalfContribution, SparseContribution
from taihu.compression import METHODS, Compressor, Unit
from taihu.errors import FrameError
from taihu.job import Job
from taihu.optimization import OptimizerShard, SumShard
from taihu.planner.partition import FrameSpec, Framing
from taihu.wire.codec import FrameHeader, ValueType

__all__ = ["Pull", "make_pull"]

Values = NDArray[np.float32]


class Scratch:
    """Room for one frame at a time; `total` is zero whenever nobody uses it."""

    def __init__(self, elements: int, layers: int) -> None:
        self.total = np.zeros(elements, dtype=np.float32)
        self.marks = make_marks(elements)
        self.indices = np.empty(elements, dtype=np.int32)
        self.values = np.empty(elements, dtype=np.float32)
        self.chosen = np.empty(elements, dtype=np.int32)
        self.packed = np.empty(elements, dtype=np.float32)
        self.sections = np.empty(packed_bound(elements, layers), dtype=np.uint8)


class Pull(ABC):
    """Applies complete frames to the shard's parameters and makes the answers."""

    def __init__(self, parameters: Values, workers: int) -> None:
        self._parameters = parameters
        self._scale = 1.0 / workers
        self._scratch: SimpleQueue[Scratch] = SimpleQueue()
        self._framing: Framing | None = None

    def adopt(self, framing: Framing) -> None:
        """Frames are cut like this from now on; nothing may be under way."""
        self._framing = framing
        self._scratch = SimpleQueue()

    @abstractmethod
    def apply(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], header: FrameHeader) -> None:
        """Update the frame's range by the mean of `contributions`; `header` is that of the answer.

        Raises:
            FrameError: they do not belong together. Nothing was changed.
        """

    @abstractmethod
    def answer(self, frame: FrameSpec, header: FrameHeader) -> Answer:
        """The answer to the last step of a frame that has been applied, without values if `header` says so."""

    @property
    def state_bytes(self) -> int:
        """Bytes that stay from step to step, beside the parameters."""
        return 0

    def parameters(self, frame: FrameSpec) -> NDArray[Any]:
        """The frame's present parameters as they are sent to whoever asks, shape (frame.count,)."""
        return self._parameters[frame.offset : frame.offset + frame.count]

    @contextmanager
    def _borrowed(self) -> Iterator[Scratch]:
        """Scratch memory: there are as many as were ever used at once, not one for each thread."""
        try:
            scratch = self._scratch.get_nowait()
        except Empty:
            assert self._framing is not None  # noqa: S101
            layers = max(len(frame.pieces) for frame in self._framing.frames)
            scratch = Scratch(self._framing.largest, layers)
        pool = self._scratch
        yield scratch
        pool.put(scratch)

    def _sum_sparse(
        self, frame: FrameSpec, contributions: Sequence[Contribution], scratch: Scratch
    ) -> tuple[NDArray[np.int32], Values]:
        count = sum_sparse_in_rank_order(
            [(each.indices, each.values) for each in contributions if isinstance(each, SparseContribution)],
            frame.offset,
            scratch.total[: frame.count],
            scratch.marks,
            scratch.indices,
            scratch.values,
        )
        return scratch.indices[:count], scratch.values[:count]


class DensePull(Pull):
    """All gradients come in, all parameters go back; any optimizer, or the workers' own."""

    def __init__(self, parameters: Values, optimizer: OptimizerShard | SumShard, workers: int) -> None:
        super().__init__(parameters, workers)
        self._optimizer = optimizer

    def apply(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], header: FrameHeader) -> None:
        """See `Pull.apply`."""
        with self._borrowed() as scratch:
            total = scratch.total[: frame.count]
            sum_in_rank_order([each for each in contributions if isinstance(each, np.ndarray)], total)
            self._update_all(frame, step, total)

    def answer(self, frame: FrameSpec, header: FrameHeader) -> Answer:
        """See `Pull.answer`."""
        if not header.is_dense:
            return Answer(header, ())
        return Answer(header, (self.parameters(frame),))

    def _update_all(self, frame: FrameSpec, step: int, total: Values, loss_scale: float = 1.0) -> None:
        scale = self._scale / loss_scale
        self._optimizer.update(frame.offset, frame.offset + frame.count, total, step, scale=scale)


class HalfPull(DensePull):
    """All gradients come in and all parameters go back in 16 bits; the parameters here are their fp32 master."""

    def __init__(self, parameters: Values, optimizer: OptimizerShard, workers: int, kind: HalfKind) -> None:
        super().__init__(parameters, optimizer, workers)
        self._kind = kind
        self._codes = np.empty(len(parameters), dtype=np.uint16)
        to_half(parameters, kind, self._codes)
        warm_up(kind)

    def apply(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], header: FrameHeader) -> None:
        """See `Pull.apply`."""
        halves = [each for each in contributions if isinstance(each, HalfContribution)]
        scales = {each.loss_scale for each in halves}
        if len(scales) != 1 or len(halves) != len(contributions):
            raise FrameError(
                f"group {frame.group} of step {step}: workers scaled their losses by {sorted(scales)}; expected one "
                "scale, train.loss_scale must be the same for all"
            )
        if header.skipped:
            return
        with self._borrowed() as scratch:
            total = scratch.total[: frame.count]
            sum_half_in_rank_order([each.codes for each in halves], self._kind, total)
            self._update_all(frame, step, total, scales.pop())
        to_half(super().parameters(frame), self._kind, self.parameters(frame))

    @property
    def state_bytes(self) -> int:
        """See `Pull.state_bytes`."""
        return self._codes.nbytes

    def parameters(self, frame: FrameSpec) -> NDArray[Any]:
        """See `Pull.parameters`."""
        return self._codes[frame.offset : frame.offset + frame.count]


class SparsePushDensePull(DensePull):
    """Selected gradients come in, all parameters go back; any optimizer."""

    def apply(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], header: FrameHeader) -> None:
        """See `Pull.apply`."""
        with self._borrowed() as scratch:
            indices, values = self._sum_sparse(frame, contributions, scratch)
            indices -= np.int32(frame.offset)
            total = scratch.total[: frame.count]
            scatter_assign(indices, values, total)
            self._update_all(frame, step, total)
            clear(total, indices)


class SparsePull(Pull):
    """Some parameters go back; the last answers are kept, because nothing else tells which they were."""

    def __init__(self, parameters: Values, optimizer: OptimizerShard, workers: int) -> None:
        super().__init__(parameters, workers)
        self._optimizer = optimizer
        self._answers: dict[int, Answer] = {}

    def adopt(self, framing: Framing) -> None:
        """See `Pull.adopt`."""
        super().adopt(framing)
        self._answers.clear()

    def answer(self, frame: FrameSpec, header: FrameHeader) -> Answer:
        """See `Pull.answer`."""
        return self._answers[frame.offset]

    def _answer_with(
        self, frame: FrameSpec, indices: NDArray[np.int32], scratch: Scratch, header: FrameHeader
    ) -> None:
        """Make the present parameters at `indices` the answer."""
        values = scratch.values[: len(indices)]
        gather(self._parameters, indices, values)
        count, size = pack(indices, values, frame.shard_bounds, scratch.packed, scratch.sections)
        pieces = (scratch.packed[:count].copy(), scratch.sections[:size].copy())
        self._answers[frame.offset] = Answer(replace(header, selected=count), pieces)


class ExactPull(SparsePull):
    """The parameters that any worker pushed a gradient for go back: methods section 1.6 (a). Plain SGD."""

    def apply(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], header: FrameHeader) -> None:
        """See `Pull.apply`."""
        with self._borrowed() as scratch:
            indices, values = self._sum_sparse(frame, contributions, scratch)
            self._optimizer.update_sparse(indices, values, step, scale=self._scale)
            self._answer_with(frame, indices, scratch, header)


class SqueezedPull(SparsePull):
    """The sum is compressed again, with error feedback here: DoubleSqueeze, methods section 1.6 (b). Plain SGD.

    The servers change exactly the parameters that they send, so replicas stay equal to the last bit.
    """

    def __init__(self, parameters: Values, optimizer: OptimizerShard, workers: int, compressor: Compressor) -> None:
        super().__init__(parameters, optimizer, workers)
        self._compressor = compressor
        self._state = compressor.init(len(parameters), ())
        self._sums = np.zeros_like(parameters)
        self._units: dict[int, int] = {}

    def adopt(self, framing: Framing) -> None:
        """See `Pull.adopt`; what was held back stays, thresholds are made anew."""
        super().adopt(framing)
        self._state.rebind([Unit(f.offset, f.offset + f.count, f.group) for f in framing.frames])
        self._units = {frame.offset: index for index, frame in enumerate(framing.frames)}

    def apply(self, frame: FrameSpec, step: int, contributions: Sequence[Contribution], header: FrameHeader) -> None:
        """See `Pull.apply`."""
        with self._borrowed() as scratch:
            indices, values = self._sum_sparse(frame, contributions, scratch)
            scatter_assign(indices, values, self._sums)
            unit = self._units[frame.offset]
            report = self._compressor.update(
                self._state,
                unit,
                step,
                gradient=self._sums,
                parameters=self._parameters,
                indices=scratch.chosen,
                values=scratch.packed,
            )
            clear(self._sums, indices)
            chosen = scratch.chosen[: report.selected]
            self._optimizer.update_sparse(chosen, scratch.packed[: report.selected], step, scale=self._scale)
            self._answer_with(frame, chosen, scratch, header)


def make_pull(job: Job, parameters: Values, optimizer: OptimizerShard | SumShard) -> Pull:
    """The way that the job's parameters come back; `adopt` comes before the first frame."""
    workers, compression = job.cluster.workers, job.compression
    if isinstance(optimizer, SumShard):
        return DensePull(parameters, optimizer, workers)
    if (kind := ValueType.named(job.train.precision).half_kind) is not None:
        return HalfPull(parameters, optimizer, workers, kind)
    if job.downlink == "exact":
        return ExactPull(parameters, optimizer, workers)
    if job.downlink == "doublesqueeze":
        compressor = Compressor(
            method=METHODS["dlgs"],
            density=compression.density,
            refresh_every=METHODS[compression.method].refresh_every or compression.refresh_every,
            density_warmup_steps=compression.density_warmup_steps,
        )
        return SqueezedPull(parameters, optimizer, workers, compressor)
    dense = DensePull if compression.method == "none" else SparsePushDensePull
    return dense(parameters, optimizer, workers)
