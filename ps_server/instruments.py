"""Instruments of a server's shard: its history, faults at its points, and steps held beyond its process.

They stand beside the way of frames, and are made only where somebody asks for them: no frame passes them else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.core.chaos.points import Chaos, Point
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import State
from taihu.core.compression.balance import Weighed
from taihu.core.history.digest import Digest, bits_of, digest_at, digest_of
from taihu.core.history.recording import Recorder, as_fp32, balance_of
from taihu.core.history.records import Sum, Update
from taihu.core.job import Job
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import FrameHeader, ValueType
from taihu.ps_server.aggregator import Complete
from taihu.ps_server.summing import (
    Contribution,
    DenseSum,
    HalfContribution,
    Scratch,
    SparseContribution,
    SparseSum,
    Total,
)
from taihu.ps_server.updating import FrameUpdates, FrameWay

Values = NDArray[np.float32]


class Recording:
    """Records sums and updates of `parameters`, the shard's; `updates` makes them.

    Threads may tell of different frames at the same time. In stage 0 of ZeRO workers update by the sums, and there
    are no updates here to be recorded.
    """

    def __init__(self, recorder: Recorder, job: Job, parameters: Values) -> None:
        self._recorder = recorder
        self._has_updates = job.stage.divides_optimizer
        self._parameters = parameters
        self._kind = ValueType.named(job.train.precision).half_kind
        self._squeezed: dict[int, tuple[SparseSum, Weighed]] = {}

    def squeezed(self, frame: FrameSpec, total: SparseSum, weighed: Weighed) -> None:
        """The frame's sum was compressed again; `summed` follows, by the same thread."""
        copied = SparseSum(total.indices.copy(), total.values.copy())
        self._squeezed[frame.offset] = copied, weighed

    def summed(self, complete: Complete[Contribution], total: Total | None) -> None:
        """All contributions to a frame, in this order, became `total`; or nothing, because the step is skipped."""
        frame, at = complete.frame, complete.at
        bounds, address = frame.arena_bounds, (at.step, at.attempt, frame.group, int(frame.arena_bounds[0, 0]))
        parts = tuple(_digest(each, frame) for each in complete.contributions)
        result = None if total is None else _digest(total, frame)
        known = self._squeezed.pop(frame.offset, None)
        if known is None:
            self._recorder.add(Sum(*address, frame.count, parts, result))
            return
        whole, weighed = known
        balance = balance_of(weighed, bounds)
        self._recorder.add(Sum(*address, frame.count, parts, _digest(whole, frame), balance, result))

    def updating(
        self, frame: FrameSpec, step: int, total: Total | None, updates: FrameUpdates
    ) -> AbstractContextManager[None]:
        """The block updates the frame by `total`, or leaves it as it is in this step, and its answer is made."""
        if not self._has_updates:
            return nullcontext()
        bounds, own = frame.arena_bounds, self._parameters[frame.offset : frame.offset + frame.count]

        def seen() -> Values:
            return as_fp32(updates.answering.parameters(frame), self._kind)

        if total is None:
            version = bits_of(own, bounds)
            read = version if self._kind is None else bits_of(seen(), bounds)
            self._recorder.add(
                Update(step, frame.group, int(bounds[0, 0]), frame.count, None, version, version, read)
            )
            return nullcontext()
        digest = _digest(total, frame)
        return self._recorder.updating(
            step, frame.group, bounds, own, lambda: digest, None if self._kind is None else seen
        )


class Holding:
    """Copies what a step has led to before anybody is answered; several threads call, each for a frame of its own.

    Args:
        held: takes the copies.
        make_state: the live state of the shard, whose arrays stay the same until `adopt`.
    """

    def __init__(self, held: HeldSteps, make_state: Callable[[], State]) -> None:
        self._held = held
        self._make_state = make_state
        self._state: State | None = None

    def adopt(self, run: Manifest) -> None:
        """Go on by another plan, between two steps."""
        self._state = None
        self._held.adopt(run)

    def updated(self, frame: FrameSpec, step: int) -> None:
        """A frame has been updated, or has stayed as it was."""
        state = self._live()
        self._held.begin(step, lambda: state)
        start, stop = frame.offset, frame.offset + frame.count
        self._held.put_range(step, {name: each[start:stop] for name, each in state.shared.arrays.items()}, start)

    def ended(self, step: int) -> None:
        """All frames of a step have been, and nobody has been answered for the last one: no other step begins."""
        self._held.put_own(step, self._live().own)
        self._held.end(step)

    def close(self) -> None:
        """The server takes no part any more: steps that end now are in no history."""
        self._held.close()

    def _live(self) -> State:
        state = self._state
        if state is None:
            state = self._state = self._make_state()
        return state


class Watched(FrameWay):
    """The way of frames with instruments around it, as many of them as there are."""

    def __init__(
        self, updates: FrameUpdates, *, chaos: Chaos | None, recording: Recording | None, holding: Holding | None
    ) -> None:
        self._updates = updates
        self._chaos, self._recording, self._holding = chaos, recording, holding

    def passes(self, point: Point, step: int) -> None:
        """The server passes `point`."""
        if self._chaos is not None:
            self._chaos.passes(point, step)

    @override
    def sum(self, complete: Complete[Contribution], scratch: Scratch) -> Total | None:
        self.passes(Point.SUM, complete.at.step)
        total = self._updates.sum(complete, scratch)
        if self._recording is not None:
            self._recording.summed(complete, total)
        return total

    @override
    def update(
        self, complete: Complete[Contribution], total: Total | None, header: FrameHeader, scratch: Scratch
    ) -> None:
        frame, step, recording = complete.frame, complete.at.step, self._recording
        if total is not None:
            self.passes(Point.UPDATE, step)
        with nullcontext() if recording is None else recording.updating(frame, step, total, self._updates):
            self._updates.update(complete, total, header, scratch)
        if self._holding is not None:
            self._holding.updated(frame, step)

    def answers(self, step: int, *, has_ended: bool) -> None:
        """A frame is about to be answered, by which its step has ended or not."""
        if self._holding is not None and has_ended:
            self._holding.ended(step)
        self.passes(Point.FETCH, step)


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
