"""Collects the frames of all workers: a pure object, no gRPC, threads or clocks.

Every frame of the plan is summed on its own, so that its answer starts on the way back while the rest of its group is
still being pushed. Steps of one frame follow each other without gaps, unless workers may leave some out: a worker
pushes step t + 1 only after it has pulled step t, so anything else is stale or a defect.

Attempts count how often the run has gone back, and never fall in it. The first frame of a higher one drops what had
come of the step under way, and what still comes of a lower one is refused. That is for a step of which nothing has
been applied here. Where something has, the parameters are no longer those that the step began with: another attempt
at it is refused until they are restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from taihu.core.base.errors import FrameError, GivenUpError, MemberLostError, StaleError
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import At, FrameHeader
from taihu.core.wire.frames.identity import Sender

Payload = TypeVar("Payload")


class Outcome(Enum):
    """The outcome of an offered frame that did not complete its sum."""

    PENDING = "pending"
    """Kept; other workers' frames are missing."""
    DUPLICATE = "duplicate"
    """Had arrived before; nothing changed, and its answer is still to come."""
    ANSWERED = "answered"
    """Had arrived before and was answered; the sender may be answered again."""


@dataclass(frozen=True)
class Complete(Generic[Payload]):
    """All workers' contributions to one frame of one step, in rank order."""

    frame: FrameSpec
    at: At
    contributions: tuple[Payload, ...]


class _Slot(Generic[Payload]):
    """The state of one frame: contributions to a step after `step`, which is `awaited` where some are there."""

    def __init__(self, frame: FrameSpec, step: int) -> None:
        self.frame = frame
        self.step = self.awaited = step
        self.applied = True
        self.skipped = False
        self.pending: dict[int, Payload] = {}


def _slots_of(frames: Sequence[FrameSpec], last_step: int) -> Mapping[int, _Slot[Any]]:
    return {frame.offset: _Slot(frame, last_step) for frame in frames}


class Aggregator(Generic[Payload]):
    """Collects contributions to the frames of a plan, starting after `last_step`.

    With `gaps` workers may leave a frame out of a step, all of them alike.
    """

    def __init__(
        self,
        *,
        plan: int,
        workers: int,
        frames: Sequence[FrameSpec],
        last_step: int = 0,
        gaps: bool = False,
    ) -> None:
        self._workers = workers
        self._gaps = gaps
        self._incarnations: dict[int, int] = {}
        self._left: set[int] = set()
        self._attempt = 0
        self._plan = plan
        self._last_step = last_step
        self._slots = _slots_of(frames, last_step)

    def restart(self, plan: int, frames: Sequence[FrameSpec], last_step: int) -> None:
        """Forget all frames, and go on after `last_step` with those of `plan`; workers stay admitted."""
        self._plan = plan
        self._last_step = last_step
        self._slots = _slots_of(frames, last_step)

    def admit(self, rank: int, incarnation: int) -> None:
        """Take frames of worker `rank` from now on if they carry `incarnation`.

        Raises:
            StaleError: the rank is outside the world.
        """
        if not 0 <= rank < self._workers:
            raise StaleError(f"worker {rank}: outside the world of {self._workers} workers")
        self._incarnations[rank] = incarnation
        self._left.discard(rank)

    def leave(self, rank: int) -> None:
        """Nothing comes of worker `rank` any more, until it is admitted again.

        Raises:
            MemberLostError: others wait for it.
        """
        self._left.add(rank)
        for slot in self._slots.values():
            if slot.pending and rank not in slot.pending:
                raise _left(rank, min(slot.pending))

    def find(self, header: FrameHeader) -> FrameSpec:
        """The frame of the plan that `header` claims to be; raises what `offer` would."""
        self.check_sender(header)
        return self._find(header).frame

    def check_asked(self, header: FrameHeader) -> FrameSpec:
        """The frame whose parameters as they are after its step a worker asks for.

        Raises:
            FrameError, StaleError: as `offer`; the parameters are those of another step.
        """
        self.check_sender(header)
        slot = self._find(header)
        at, group, offset, _ = header.address
        if at.step != slot.step or not slot.applied:
            raise StaleError(
                f"{header.sender.label} asks for group {group}, offset {offset} after step {at.step}: "
                f"expected step {slot.step}"
            )
        return slot.frame

    def is_quiet_after(self, step: int, attempt: int = 0) -> bool:
        """Whether every frame has been applied up to `step` and nothing waits, so that the plan may change.

        What waits is nothing if `attempt` is a higher one.
        """
        given_up = attempt > self._attempt
        return all(self._has_ended(slot, step) and (given_up or not slot.pending) for slot in self._slots.values())

    def has_ended(self, step: int) -> bool:
        """Whether every frame has been applied up to `step`, and none beyond it; frames may wait for workers."""
        return all(self._has_ended(slot, step) for slot in self._slots.values())

    def offer(self, header: FrameHeader, payload: Payload) -> Outcome | Complete[Payload]:
        """Take one frame in; only a frame that is not refused changes anything.

        Raises:
            FrameError: the frame is not one of the plan's, or claims the wrong size or group.
            MemberLostError: a worker has left whose frame would be waited for.
            StaleError: another plan or incarnation, an unknown sender, a step that is not the next one, an attempt
                that was given up, or a new attempt of a step of which a frame has been applied.
        """
        sender = self.check_sender(header)
        slot = self._find(header)
        self._check_step(header, slot)
        at = header.address.at
        if at.attempt > self._attempt:
            self._begin_attempt(header.sender, at)
        if at.step == slot.step:
            return Outcome.ANSWERED if slot.applied else Outcome.DUPLICATE
        if sender in slot.pending:
            return Outcome.DUPLICATE
        if absent := self._left - slot.pending.keys():
            raise _left(min(absent), sender)
        slot.pending[sender] = payload
        slot.awaited = at.step
        if len(slot.pending) < self._workers:
            return Outcome.PENDING
        contributions = tuple(map(slot.pending.__getitem__, range(self._workers)))
        slot.pending.clear()
        slot.step = at.step
        slot.applied = False
        return Complete(slot.frame, at, contributions)

    def applied(self, frame: FrameSpec, *, skipped: bool = False) -> None:
        """The last complete sum of `frame` is in the parameters, or its step was skipped."""
        slot = self._slots[frame.offset]
        slot.applied, slot.skipped = True, skipped

    def find_answered(self, header: FrameHeader) -> tuple[FrameSpec, bool]:
        """The frame of the plan that `header` claims to be, and whether its last complete sum was thrown away.

        Raises:
            FrameError, StaleError: as `offer`; the last complete sum is of another step.
        """
        self.check_sender(header)
        slot = self._find(header)
        step = header.address.at.step
        if not (step == slot.step > self._last_step and slot.applied):
            raise StaleError(f"{header.sender.label}, group {header.address.group}: step {step} was not the last one")
        return slot.frame, slot.skipped

    def missing(self) -> dict[int, tuple[int, ...]]:
        """For every frame that waits, by offset, the ranks whose contribution is missing."""
        return {
            offset: tuple(rank for rank in range(self._workers) if rank not in slot.pending)
            for offset, slot in self._slots.items()
            if slot.pending
        }

    def _has_ended(self, slot: _Slot[Payload], step: int) -> bool:
        """Whether a frame has been applied up to `step`, and not beyond it."""
        return slot.applied and (slot.step == step or (self._gaps and slot.step < step))

    def _check_step(self, header: FrameHeader, slot: _Slot[Payload]) -> None:
        """Refuse all but the step to come, and the last one if it was collected here."""
        at, group, offset, _ = header.address
        following = slot.awaited if slot.pending else slot.step + 1
        is_next = at.step == following or (self._gaps and not slot.pending and at.step > following)
        if at.step == slot.step > self._last_step or (is_next and slot.applied):
            return
        expected = str(following) if slot.applied else f"none before the answer to step {slot.step}"
        raise StaleError(
            f"{header.sender.label}, group {group}, offset {offset}: step {at.step}, expected {expected}"
        )

    def _begin_attempt(self, sender: Sender, at: At) -> None:
        """Drop what came of lower attempts, unless the step has changed parameters already."""
        if any(slot.step >= at.step for slot in self._slots.values()):
            raise StaleError(
                f"{sender.label} begins attempt {at.attempt} at step {at.step}, of which attempt "
                f"{self._attempt} has changed parameters already; restore the servers to step {at.step - 1} first"
            )
        for slot in self._slots.values():
            slot.pending.clear()
        self._attempt = at.attempt

    def check_sender(self, header: FrameHeader) -> int:
        """The rank of a worker whose frame may be taken.

        Raises:
            GivenUpError: it is of an attempt that was given up.
            StaleError: another plan or incarnation, or an unknown sender.
        """
        (incarnation, rank), at = header.sender, header.address.at
        if at.plan != self._plan:
            raise StaleError(f"frame of plan {at.plan}, this server is at plan {self._plan}")
        if rank is None or rank not in self._incarnations:
            raise StaleError(f"frame of {header.sender.label}, which has no open exchange with this server")
        if self._incarnations[rank] != incarnation:
            raise StaleError(f"frame of an earlier incarnation of worker {rank}")
        if at.attempt < self._attempt:
            raise GivenUpError(
                f"worker {rank}, group {header.address.group}: attempt {at.attempt} at step {at.step} was given "
                f"up, this server is at attempt {self._attempt}"
            )
        return rank

    def _find(self, header: FrameHeader) -> _Slot[Payload]:
        _, group, offset, count = header.address
        slot = self._slots.get(offset)
        if slot is None or slot.frame.count != count or slot.frame.group != group:
            seen = f"group {group}, offset {offset}, {count} values"
            expected = "a frame of the plan"
            if slot is not None:
                expected = f"group {slot.frame.group}, {slot.frame.count} values at this offset"
            raise FrameError(f"frame of {header.sender.label}: {seen}; expected {expected}")
        return slot


def _left(rank: int, waiting: int) -> MemberLostError:
    return MemberLostError(f"worker {rank} has left the run while worker {waiting} goes on")
