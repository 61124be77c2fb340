"""The history of a server's shard: what it sums and updates, if anybody records that."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from taihu.core.compression.balance import Weighed
from taihu.core.history.digest import Digest, bits_of, digest_at, digest_of
from taihu.core.history.recording import Recorder, as_fp32, balance_of
from taihu.core.history.records import Sum, Update
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import At
from taihu.kernels.base.half import HalfKind
from taihu.ps_server.answering import Answering
from taihu.ps_server.summing import Contribution, DenseSum, HalfContribution, SparseContribution, SparseSum, Total

__all__ = ["Recording"]

Values = NDArray[np.float32]


class Recording:
    """Records sums and updates of `parameters`, the shard's; does nothing where `recorder` is off.

    Threads may tell of different frames at the same time. `kind` is that of 16-bit parameters, if they travel so;
    `updates` says whether there are any, not sums that workers update by.
    """

    def __init__(self, recorder: Recorder, parameters: Values, kind: HalfKind | None, *, updates: bool) -> None:
        self._recorder = recorder
        self._updates = recorder if updates else Recorder.off()
        self._parameters = parameters
        self._kind = kind
        self._squeezed: dict[int, tuple[SparseSum, Weighed]] = {}

    @property
    def weighs(self) -> bool:
        """Whether `squeezed` wants to be told."""
        return self._recorder.enabled

    def squeezed(self, frame: FrameSpec, total: SparseSum, weighed: Weighed) -> None:
        """The frame's sum was compressed again; `summed` follows, by the same thread."""
        copied = SparseSum(total.indices.copy(), total.values.copy())
        self._squeezed[frame.offset] = copied, weighed

    def summed(self, frame: FrameSpec, at: At, contributions: Sequence[Contribution], total: Total | None) -> None:
        """All contributions to a frame, in this order, became `total`; or nothing, because the step is skipped."""
        if not self._recorder.enabled:
            return
        bounds, address = frame.arena_bounds, (at.step, at.attempt, frame.group, int(frame.arena_bounds[0, 0]))
        parts = tuple(_digest(each, frame) for each in contributions)
        result = None if total is None else _digest(total, frame)
        known = self._squeezed.pop(frame.offset, None)
        if known is None:
            self._recorder.add(Sum(*address, frame.count, parts, result))
            return
        whole, weighed = known
        balance = balance_of(weighed, bounds)
        self._recorder.add(Sum(*address, frame.count, parts, _digest(whole, frame), balance, result))

    def updating(
        self, frame: FrameSpec, step: int, total: Total, answering: Answering
    ) -> AbstractContextManager[None]:
        """The block updates the frame by `total`, and tells `answering`."""

        def seen() -> Values:
            return as_fp32(answering.parameters(frame), self._kind)

        return self._updates.updating(
            step,
            frame.group,
            frame.arena_bounds,
            self._of(frame),
            lambda: _digest(total, frame),
            None if self._kind is None else seen,
        )

    def skipped(self, frame: FrameSpec, step: int, answering: Answering) -> None:
        """The frame stays as it is in this step."""
        if self._updates.enabled:
            bounds = frame.arena_bounds
            version = bits_of(self._of(frame), bounds)
            seen = (
                version if self._kind is None else bits_of(as_fp32(answering.parameters(frame), self._kind), bounds)
            )
            start = int(bounds[0, 0])
            self._updates.add(Update(step, frame.group, start, frame.count, None, version, version, seen))

    def _of(self, frame: FrameSpec) -> Values:
        return self._parameters[frame.offset : frame.offset + frame.count]


def _digest(values: Contribution | Total, frame: FrameSpec) -> Digest:
    """The digest of what a worker sent, or of a sum, at its places in the arena."""
    match values:
        case HalfContribution(codes, kind):
            return digest_of(as_fp32(codes, kind), frame.arena_bounds)
        case DenseSum(total):
            return digest_of(total, frame.arena_bounds)
        case SparseContribution(indices, selected) | SparseSum(indices, selected):
            return digest_at(selected, _places(indices, frame))
        case _:
            return digest_of(values, frame.arena_bounds)


def _places(indices: NDArray[np.int32], frame: FrameSpec) -> NDArray[np.int64]:
    """The places in the arena of all that have these in the server's."""
    starts = frame.shard_bounds[:, 0]
    pieces = np.searchsorted(starts, indices, side="right") - 1
    places: NDArray[np.int64] = indices + (frame.arena_bounds[:, 0] - starts)[pieces]
    return places
