"""Workers of a run that do not wait for each other, simulated around the pure aggregator; their oracle is NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taihu.core.history.order import Entered, Order, OrderHead
from taihu.core.planner.partition import FrameSpec, Piece
from taihu.core.traits.consistencies import Consistency
from taihu.core.wire.frames.headers import At
from taihu.ps_server.loose_aggregator import Entry, LooseAggregator, Turn

Values = NDArray[np.float64]
SIZE = 3


def frames_of(count: int) -> tuple[FrameSpec, ...]:
    """Frames of `SIZE` elements, one after the other."""
    return tuple(
        FrameSpec(0, SIZE * number, SIZE, (Piece(SIZE * number, SIZE * (number + 1)),)) for number in range(count)
    )


def gradient(parameters: Values, rank: int, step: int) -> Values:
    """Any function of all that a gradient may depend on."""
    found: Values = np.sin(parameters + parameters.sum() + rank) + step / 7
    return found


@dataclass
class Worker:
    """A worker between two steps, or in one: `unsent` and `unanswered` are frames of it."""

    parameters: Values
    step: int = 0
    gradient: Values = field(default_factory=lambda: np.zeros(0))
    unsent: list[int] = field(default_factory=list)
    unanswered: set[int] = field(default_factory=set)
    come_to: dict[int, int] = field(default_factory=dict)


class LooseWorld:
    """A run of `steps`; `choose(n)` says which of n things happens next.

    Attributes:
        parameters: of the server.
        versions: of each frame, all that there were.
        entries: all that entered, with their frame; and those that were dropped.
    """

    def __init__(self, consistency: Consistency, workers: int, frames: int, steps: int) -> None:
        self.consistency, self.steps = consistency, steps
        self.frames = frames_of(frames)
        self.parameters = np.linspace(-1, 1, SIZE * frames)
        self.versions = [[self._of(frame).copy()] for frame in self.frames]
        self.workers = [Worker(self.parameters.copy()) for _ in range(workers)]
        self.entries: list[tuple[int, Entry]] = []
        self.dropped: list[tuple[int, Entry]] = []
        self.order: list[Entered] = []
        self.most_ahead = 0
        self._aggregator: LooseAggregator[Values] = LooseAggregator(consistency, workers, self.frames)

    def play(self, events: str) -> None:
        """Have events happen that text tells: `0 computes, 0 sends 1`: a rank, and the number of a frame."""
        for event in events.split(", "):
            rank, verb, *number = event.split()
            if verb == "computes":
                self._compute(int(rank))
            else:
                self._send(int(rank), int(number[0]))

    def run(self, choose: Callable[[int], int]) -> None:
        """Make all steps; raises AssertionError where nothing can happen any more before that."""
        while deeds := [deed for rank in range(len(self.workers)) for deed in self._deeds(rank)]:
            deeds[choose(len(deeds))]()
        assert all(worker.step == self.steps and not worker.unanswered for worker in self.workers), "they wait"

    def _deeds(self, rank: int) -> list[Callable[[], None]]:
        worker = self.workers[rank]
        if worker.unsent:
            return [lambda number=number: self._send(rank, number) for number in worker.unsent]  # type: ignore[misc]
        if worker.unanswered or worker.step == self.steps:
            return []
        return [lambda: self._compute(rank)]

    def _compute(self, rank: int) -> None:
        worker = self.workers[rank]
        # As far as the frame that is least far.
        passed = min(worker.come_to.get(number, 0) for number in range(len(self.frames)))
        worker.step = min(self.steps, max(worker.step, passed) + 1)
        if worker.step < self.steps:
            lowest = min(other.step for other in self.workers)
            self.most_ahead = max(self.most_ahead, worker.step - lowest)
        worker.gradient = gradient(worker.parameters, rank, worker.step)
        worker.unsent = list(range(len(self.frames)))
        worker.unanswered = set(worker.unsent)

    def _send(self, rank: int, number: int) -> None:
        worker, frame = self.workers[rank], self.frames[number]
        worker.unsent.remove(number)
        at = At(1, worker.step)
        turn = self._aggregator.offer(frame, rank, at, worker.gradient[self._slice(frame)].copy())
        assert turn is not None
        assert self._aggregator.offer(frame, rank, at, worker.gradient) is None, "a frame enters once"
        self._carry_out(number, turn)

    def _carry_out(self, number: int, turn: Turn[Values]) -> None:
        frame = self.frames[number]
        for update in turn.updates:
            mean = np.sum(update.contributions, axis=0) / len(update.contributions)
            self._of(frame)[:] -= 0.1 * mean
            self.versions[number].append(self._of(frame).copy())
            assert update.version == len(self.versions[number]) - 1
            self.entries += [(number, entry) for entry in update.entries]
            self.order += [
                Entered(number, entry.rank, entry.step, update.version, entry.read) for entry in update.entries
            ]
        if turn.dropped is not None:
            self.dropped.append((number, turn.dropped))
            entry = turn.dropped
            self.order.append(Entered(number, entry.rank, entry.step, 0, entry.read, is_dropped=True))
        for due in turn.answers:
            worker = self.workers[due.rank]
            worker.parameters[self._slice(frame)] = self._of(frame)
            worker.unanswered.remove(number)
            worker.come_to[number] = due.at.step + due.ahead

    @staticmethod
    def _slice(frame: FrameSpec) -> slice:
        return slice(frame.offset, frame.offset + frame.count)

    def _of(self, frame: FrameSpec) -> Values:
        return self.parameters[self._slice(frame)]


def orders_of(world: LooseWorld, servers: int = 1) -> Sequence[Order]:
    """The orders that so many servers would record, which have the frames in turns."""
    orders = []
    for server in range(servers):
        own = [number for number in range(len(world.frames)) if number % servers == server]
        ranges = tuple(((world.frames[n].offset, world.frames[n].offset + SIZE),) for n in own)
        head = OrderHead("digest", server, 1, 0, len(world.workers), len(world.parameters), ranges)
        entries = tuple(
            Entered(own.index(each.frame), each.rank, each.step, each.version, each.read, each.is_dropped)
            for each in world.order
            if each.frame in own
        )
        orders.append(Order(head, entries, is_whole=True))
    return orders
