"""Updates of parameters, here by every worker; by servers in `servers.answers`, by a ring's owners in `ring.sharded`.

A route is given one of these. Parts are disjoint, so several threads may hand in different ones at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError
from taihu.core.checkpoint.part import Elements, named
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.optimization import MeanGradients, OptimizerShard, WholeNorm, in_steps
from taihu.core.planner.partition import FrameSpec, Piece
from taihu.kernels.base.half import HalfKind
from taihu.kernels.half_sums import all_finite_half
from taihu.kernels.reduce import all_finite
from taihu.kernels.selection.scatter import scatter_assign
from taihu.worker.exchange.base.recording import Recording
from taihu.worker.exchange.base.route import Held
from taihu.worker.memory.arenas import Arenas

Values = NDArray[np.float32]
# What is checked is in the cache when parameters are updated by it.
_AT_ONCE: Final = 1 << 18


Optimizer = OptimizerShard | MeanGradients


def optimizer_of(job: Job, plan: Plan, arenas: Arenas) -> Optimizer:
    """The optimizer of all parameters on a worker that updates them; a stand-in where the user has one."""
    if job.exchange.returns == "gradients":
        return MeanGradients(arenas.parameters, arenas.gradients)
    return OptimizerShard(in_steps(job.server_optimizer, plan.length), arenas.parameters)


class Updates(Protocol):
    """The use of the values that come for a frame."""

    def places(self, frame: FrameSpec) -> list[NDArray[Any]]:
        """The places where the frame's values may be received; `received` follows."""

    def received(self, frame: FrameSpec, step: int, group: int) -> None:
        """The places of `frame`, which belongs to `group`, hold what came of `step`."""

    def write(self, frame: FrameSpec, values: NDArray[Any], step: int) -> None:
        """Take what came of `step` from `values`, shape (frame.count,), of the dtype of what is exchanged."""

    def write_selected(self, frame: FrameSpec, places: NDArray[np.int32], values: Values, step: int) -> None:
        """Take what came of `step` at some `places` of the arena, ascending ones of the frame; both of shape (k,)."""


class ByEveryWorker:
    """Sums of all workers' gradients come, over this worker's own, and every worker updates all parameters.

    Sums are the same bits on every worker and updates are pure functions of them, so replicas stay equal to the bit.
    A part that was updated in a step is not updated in it again, whatever is replayed.

    Args:
        optimizer: of all parameters.
        gradients: the arena, shape (elements,).
        workers: whose mean is applied.
        checks: whether sums that are not finite are an error.
        largest_norm: of the whole mean gradient, where updates wait for `apply`.
        recording: is told of each update.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        gradients: Values,
        workers: int,
        *,
        checks: bool,
        recording: Recording,
        largest_norm: float | None = None,
    ) -> None:
        self.optimizer = optimizer
        optimizer.warm_up()
        self._gradients = gradients
        self._scale = 1.0 / workers
        self._checks = checks
        self._recording = recording
        self._largest_norm = largest_norm
        self._applied_step = 0
        self._updated: dict[int, int] = {}

    def places(self, frame: FrameSpec) -> list[NDArray[Any]]:
        """The frame's range of the gradients, which have been sent."""
        return frame.views(self._gradients)

    def received(self, frame: FrameSpec, step: int, group: int) -> None:
        """Update by the sum in the gradients; raises FrameError where it is not finite."""
        self.received_all([frame], step, group)

    def received_all(self, frames: Sequence[FrameSpec], step: int, group: int) -> None:
        """As `received`, of several frames: with all of a group's there are few calls of kernels."""
        new = []
        for frame in frames:
            first = frame.pieces[0].start
            if self._updated.get(first) != step:
                self._updated[first] = step
                new.append(frame)
        for piece in new[0].ranges if len(new) == 1 else _cut(joined(new)):
            self._update(group, piece.start, self._gradients[piece.start : piece.stop], step)

    def write(self, frame: FrameSpec, values: NDArray[Any], step: int) -> None:
        """Update by the sum `values`; raises as `received` does."""
        first = frame.pieces[0].start
        if self._updated.get(first) == step:
            return
        self._updated[first] = step
        taken = 0
        for piece in frame.ranges:
            count = piece.stop - piece.start
            if self._largest_norm is not None:
                np.copyto(self._gradients[piece.start : piece.stop], values[taken : taken + count])
            self._update(frame.group, piece.start, values[taken : taken + count], step)
            taken += count

    def write_selected(self, frame: FrameSpec, places: NDArray[np.int32], values: Values, step: int) -> None:
        """Update by sums that are zero wherever nobody selected anything; raises as `received` does."""
        if self._updated.get(frame.pieces[0].start) == step:
            return
        for own in frame.views(self._gradients):
            own.fill(0.0)
        scatter_assign(places, values, self._gradients)
        self.received(frame, step, frame.group)

    def apply(self, step: int) -> None:
        """Update all parameters by the sums in the gradients, scaled down together where their mean is too large."""
        assert self._largest_norm is not None  # noqa: S101
        if step == self._applied_step:
            return
        self._applied_step = step
        norm = WholeNorm(self._largest_norm, self._scale)
        norm.add(self._gradients)
        scale = self._scale * norm.factor
        with self._recording.updating_all(step, self._gradients) if self._recording.enabled else nullcontext():
            self.optimizer.update(0, len(self._gradients), self._gradients, step, scale)

    def held(self) -> Held:
        """All parameters, and their optimizer state."""
        return held_by_all(self.optimizer)

    def _update(self, group: int, start: int, total: Values, step: int) -> None:
        if self._checks:
            check_finite(total, group, step)
        if self._largest_norm is not None:
            return
        stop = start + len(total)
        if not self._recording.enabled:
            self.optimizer.update(start, stop, total, step, self._scale)
            return
        with self._recording.updating(step, group, start, self.optimizer.parameters[start:stop], total):
            self.optimizer.update(start, stop, total, step, self._scale)


def _cut(ranges: Sequence[Piece]) -> Iterator[Piece]:
    for piece in ranges:
        for start in range(piece.start, piece.stop, _AT_ONCE):
            yield Piece(start, min(start + _AT_ONCE, piece.stop))


def joined(frames: Sequence[FrameSpec]) -> list[Piece]:
    """The ranges of a worker's arena that frames cover, which do not overlap; one where they have no gaps."""
    if not frames:
        return []
    start, stop = min(frame.pieces[0].start for frame in frames), max(frame.pieces[-1].stop for frame in frames)
    if sum(frame.count for frame in frames) == stop - start:
        return [Piece(start, stop)]
    return [piece for frame in frames for piece in frame.ranges]


def held_by_all(optimizer: Optimizer) -> Held:
    """All parameters and their optimizer state, which every worker has."""
    whole = np.array([[0, len(optimizer.parameters)]], dtype=np.int64)
    return Held(Elements(whole, named(optimizer.parameters, optimizer.state())), replicated=True)


def check_finite(total: NDArray[Any], group: int, step: int, kind: HalfKind | None = None) -> None:
    """Raise FrameError unless a sum of gradients is finite; it is one of codes where `kind` says so."""
    if not (all_finite(total) if kind is None else all_finite_half(total, kind)):
        raise FrameError(
            f"group {group} of step {step}: the sum of all gradients is not finite; lower "
            "optimizer.learning_rate or check the data, or set exchange.non_finite = 'allow'"
        )
