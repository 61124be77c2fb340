"""Collects frames where a step does not wait for all workers: a pure object, no gRPC, threads or clocks.

Two kinds of consistency have one state. Where each gradient is an update of its own (`applies_each`), a frame changes
the parameters as it comes, and its worker is answered as soon as nobody is further behind it than the `lead` allows:
stale synchronous parallel (Ho et al. 2013), or asynchronous without a bound. Where a step has spare workers (Chen et
al. 2016), it is complete with all contributions but so many, and what comes later is dropped and answered at once.

A frame has a version, the number of its updates. A contribution knows which version its worker computed from, and so
its staleness: the number of steps before its own of which some worker's gradient, or all of them, were not in there.
That is known here alone: a worker has what it was answered with, or what it got where all workers met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from taihu.core.base.errors import StaleError
from taihu.core.planner.partition import FrameSpec
from taihu.core.traits.consistencies import Consistency
from taihu.core.wire.frames.headers import At

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Entry:
    """One worker's contribution to a frame.

    Attributes:
        rank: of the worker.
        step: of the worker.
        read: version of the frame that it was computed from.
        staleness: steps before `step` of which that version lacks something.
        missed: updates of the frame since that version.
    """

    rank: int
    step: int
    read: int
    staleness: int
    missed: int


@dataclass(frozen=True, slots=True)
class Update(Generic[Payload]):
    """An update of a frame: of `step`, by the mean of `contributions`, in rank order; it makes version `version`."""

    at: At
    version: int
    contributions: tuple[Payload, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Due:
    """An answer to worker `rank`, to its step `at`; the frame has come `ahead` steps further than that."""

    rank: int
    at: At
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Turn(Generic[Payload]):
    """All that follows from an input, for one frame and in this order: updates, then answers.

    `dropped` is a contribution that came too late.
    """

    frame: FrameSpec
    updates: tuple[Update[Payload], ...] = ()
    answers: tuple[Due, ...] = ()
    dropped: Entry | None = None


class _Slot(Generic[Payload]):
    """The state of one frame.

    Attributes:
        version: number of its updates.
        step: the last step that is complete, where a step has a sum.
        entered: the last step that each worker has brought.
        read: the version that each worker computes from.
        lacks_after: the last step of which nothing is missing in there, for each worker.
        held: answers that wait for workers that are behind.
        pending: contributions to steps that are not complete, by step and rank.
        finished: workers of which nothing comes any more.
    """

    def __init__(self, frame: FrameSpec, workers: int, step: int) -> None:
        self.frame = frame
        self.version = 0
        self.step = step
        self.entered = [step] * workers
        self.read = [0] * workers
        self.lacks_after = [step] * workers
        self.held: dict[int, At] = {}
        self.pending: dict[int, dict[int, tuple[At, Payload, Entry]]] = {}
        self.finished: set[int] = set()


class LooseAggregator(Generic[Payload]):
    """Collects contributions to frames; inputs for different frames may come at the same time.

    Args:
        consistency: a loose one.
        workers: their number.
        frames: of the plan.
        last_step: that the run goes on from.
    """

    def __init__(
        self, consistency: Consistency, workers: int, frames: Sequence[FrameSpec], last_step: int = 0
    ) -> None:
        self._consistency = consistency
        self._workers = workers
        self._slots: Mapping[int, _Slot[Payload]] = {
            frame.offset: _Slot(frame, workers, last_step) for frame in frames
        }

    def offer(self, frame: FrameSpec, rank: int, at: At, payload: Payload) -> Turn[Payload] | None:
        """Take one worker's frame in; None where it had come before.

        Raises:
            StaleError: it is of a step that cannot follow the worker's last one.
        """
        slot = self._slots[frame.offset]
        last = slot.entered[rank]
        if at.step == last:
            return None
        if at.step < last or (at.step > last + 1 and not self._consistency.leaves_behind):
            raise StaleError(
                f"worker {rank}, group {frame.group}, offset {frame.offset}: step {at.step}, expected {last + 1}"
            )
        slot.entered[rank] = at.step
        staleness = max(0, at.step - 1 - slot.lacks_after[rank])
        entry = Entry(rank, at.step, slot.read[rank], staleness, slot.version - slot.read[rank])
        if self._consistency.applies_each:
            slot.version += 1
            slot.held[rank] = at
            update = Update(at, slot.version, (payload,), (entry,))
            return Turn(frame, (update,), tuple(self._released(slot)))
        if at.step <= slot.step or staleness:
            # What it was computed from is not what the step began with.
            return Turn(frame, (), (self._answered(slot, rank, at),), entry)
        slot.pending.setdefault(at.step, {})[rank] = at, payload, entry
        return self._completed(slot)

    def finish(self, frame: FrameSpec, rank: int) -> Turn[Payload]:
        """Nothing more comes of a worker, as far as a frame goes: nobody waits for it."""
        slot = self._slots[frame.offset]
        slot.finished.add(rank)
        if self._consistency.applies_each:
            return Turn(frame, (), tuple(self._released(slot)))
        return self._completed(slot)

    def meet(self) -> None:
        """All workers have been answered everything, and get the parameters as they are."""
        for slot in self._slots.values():
            slot.step = max((slot.step, *slot.entered))
            for rank in range(self._workers):
                slot.read[rank] = slot.version
                slot.lacks_after[rank] = slot.entered[rank] = slot.step

    def _lowest(self, slot: _Slot[Payload]) -> int | None:
        """The last step of the worker that is furthest behind; None where all have finished."""
        left = [step for rank, step in enumerate(slot.entered) if rank not in slot.finished]
        return min(left, default=None)

    def _released(self, slot: _Slot[Payload]) -> Iterator[Due]:
        """Answers that wait for nobody any more, in the order of ranks."""
        lowest, lead = self._lowest(slot), self._consistency.lead
        for rank in sorted(slot.held):
            at = slot.held[rank]
            behind = 0 if lowest is None else at.step - lowest
            if lead is None or behind <= lead:
                del slot.held[rank]
                slot.read[rank] = slot.version
                slot.lacks_after[rank] = at.step - behind
                yield Due(rank, at)

    def _answered(self, slot: _Slot[Payload], rank: int, at: At) -> Due:
        """The answer to a step that is summed, or over."""
        slot.read[rank] = slot.version
        slot.lacks_after[rank] = slot.step
        return Due(rank, at, max(0, slot.step - at.step))

    def _completed(self, slot: _Slot[Payload]) -> Turn[Payload]:
        """The updates of all steps that are complete now, and what they are answered with."""
        updates, entered = [], []
        while (step := slot.step + 1) in slot.pending and len(slot.pending[step]) >= self._enough(slot, step):
            come = sorted(slot.pending.pop(step).items())
            slot.step = step
            slot.version += 1
            payloads = tuple(payload for _, (_, payload, _) in come)
            entries = tuple(entry for _, (_, _, entry) in come)
            updates.append(Update(come[0][1][0], slot.version, payloads, entries))
            entered += [(rank, at) for rank, (at, _, _) in come]
        # Answers have all of that in them.
        answers = tuple(self._answered(slot, rank, at) for rank, at in entered)
        return Turn(slot.frame, tuple(updates), answers)

    def _enough(self, slot: _Slot[Payload], step: int) -> int:
        """The contributions that complete a step: fewer where so many do not come any more."""
        may_come = {rank for rank in range(self._workers) if rank not in slot.finished}
        return max(1, min(self._workers - self._consistency.spares, len(may_come | slot.pending[step].keys())))
