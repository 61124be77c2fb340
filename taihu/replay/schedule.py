"""The order in which one process makes a run of several again: a pure object.

Of each frame there are updates in the order of its versions, and for each worker's step the version that it was
computed from. A worker's copy of the parameters takes each frame over at that version, and computes when it has all;
an update waits for the gradients that entered it, and for those who have yet to take the version before it over. What
happened once is such an order, so there is always one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taihu.core.base.errors import RunError
from taihu.core.history.order import Order

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Worker `rank` takes `ranges` of the parameters over as they are."""

    rank: int
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Compute:
    """Worker `rank` computes the gradient of its `step`."""

    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Update `ranges`, in `step`, by the mean of the gradients of `ranks`, in this order."""

    ranges: Ranges
    step: int
    ranks: tuple[int, ...]


Deed = TakeOver | Compute | Apply


@dataclass(frozen=True, slots=True)
class _Update:
    step: int
    ranks: tuple[int, ...]


class _Frame:
    """One frame: its updates that are left, and for each worker the reads that are: step and version."""

    def __init__(self, ranges: Ranges, workers: int) -> None:
        self.ranges = ranges
        self.version = 0
        self.updates: deque[_Update] = deque()
        self.reads: list[deque[tuple[int, int]]] = [deque() for _ in range(workers)]


class Replay:
    """A whole run; `deeds` is called once.

    Args:
        orders: of all servers.

    Raises:
        RunError: they do not belong together, or lack what the run's end needs.
    """

    def __init__(self, orders: Sequence[Order]) -> None:
        head = orders[0].head
        for order in orders:
            name = f"the order of server {order.head.server}"
            if not order.is_whole:
                raise RunError(
                    f"{name} has no end: the run has failed, or goes on; only one that ended is made again"
                )
            if order.head.begun_after:
                raise RunError(f"{name} goes on from step {order.head.begun_after}; only a whole run is made again")
            if (order.head.job, order.head.generation) != (head.job, head.generation):
                raise RunError(f"{name} is of another run than that of server {head.server}")
        self._workers = head.workers
        self._frames: list[_Frame] = []
        for order in orders:
            self._add(order)
        entered = {(rank, update.step) for frame in self._frames for update in frame.updates for rank in update.ranks}
        self._steps = [
            deque(sorted(step for other, step in entered if other == rank)) for rank in range(self._workers)
        ]
        for frame in self._frames:
            # Gradients that entered nowhere are not computed again.
            for rank, reads in enumerate(frame.reads):
                frame.reads[rank] = deque(read for read in sorted(reads) if (rank, read[0]) in entered)

    @property
    def gradients(self) -> int:
        """The number of gradients that are computed."""
        return sum(map(len, self._steps))

    @property
    def updates(self) -> int:
        """The number of updates of frames."""
        return sum(len(frame.updates) for frame in self._frames)

    def _add(self, order: Order) -> None:
        frames = [_Frame(ranges, self._workers) for ranges in order.head.frames]
        versions = [0] * len(frames)
        for each in order.entries:
            frame = frames[each.frame]
            frame.reads[each.rank].append((each.step, each.read))
            if each.is_dropped:
                continue
            if each.version == versions[each.frame] + 1:
                versions[each.frame] += 1
                frame.updates.append(_Update(each.step, (each.rank,)))
            elif each.version == versions[each.frame] and frame.updates:
                last = frame.updates.pop()
                frame.updates.append(_Update(last.step, (*last.ranks, each.rank)))
            else:
                raise RunError(f"the order of server {order.head.server} is damaged: versions of a frame have a gap")
        self._frames += frames

    def deeds(self) -> Iterator[Deed]:
        """All that is to be done, in an order that leads to the same parameters."""
        computed = [0] * self._workers
        goes_on = True
        while goes_on:
            goes_on = False
            for rank in range(self._workers):
                for deed in self._of_worker(rank):
                    goes_on = True
                    if isinstance(deed, Compute):
                        computed[rank] = deed.step
                    yield deed
            for frame in self._frames:
                for apply in self._of_frame(frame, computed):
                    goes_on = True
                    yield apply
        if any(self._steps) or any(frame.updates for frame in self._frames):
            raise RunError("the orders lack a frame that others have been computed from: a file is damaged")

    def _of_worker(self, rank: int) -> Iterator[Deed]:
        """The deeds of a worker that can be done now: its next step, as far as frames have come to it."""
        steps = self._steps[rank]
        if not steps:
            return
        waits = False
        for frame in self._frames:
            reads = frame.reads[rank]
            if not reads or reads[0][0] != steps[0]:
                continue
            if reads[0][1] == frame.version:
                reads.popleft()
                yield TakeOver(rank, frame.ranges)
            else:
                waits = True
        if not waits:
            yield Compute(rank, steps.popleft())

    def _of_frame(self, frame: _Frame, computed: Sequence[int]) -> Iterator[Apply]:
        """The updates of a frame that can be made now."""
        while frame.updates:
            update = frame.updates[0]
            if any(computed[rank] != update.step for rank in update.ranks):
                return
            if any(reads and reads[0][1] <= frame.version for reads in frame.reads):
                return
            frame.updates.popleft()
            frame.version += 1
            yield Apply(frame.ranges, update.step, update.ranks)
