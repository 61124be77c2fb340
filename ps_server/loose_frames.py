"""The frames of a shard where a step does not wait for all workers: applied in order, and answered one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taihu.core.history.order import Entered, OrderFile
from taihu.core.planner.partition import FrameSpec
from taihu.core.system.threads import Lock
from taihu.core.traits.consistencies import Consistency
from taihu.core.wire.frames.headers import At, FrameHeader
from taihu.core.wire.serving.staleness import StalenessCounts
from taihu.ps_server.aggregator import Complete, Outcome
from taihu.ps_server.loose_aggregator import Due, Entry, LooseAggregator, Turn, Update
from taihu.ps_server.summing import Contribution, FrameBuffers
from taihu.ps_server.updating import Answer, FrameUpdates, FrameWay


@dataclass(frozen=True)
class Answers:
    """Answers to some workers, each with its rank; `has_updated` where parameters changed."""

    to: tuple[tuple[int, Answer], ...]
    has_updated: bool


class LooseFrames:
    """Frames of one plan. Any thread may call; of one frame, one at a time goes on.

    Args:
        consistency: a loose one.
        workers: their number.
        frames: all of the shard.
        last_step: that the run goes on from.
        updates: of the shard, and `way` with the instruments that stand around them.
        buffers: get contributions back that are in the parameters.
        header: makes the header of an answer, to the step and by how many steps the frame is ahead of it.
        counts: of contributions.
        order: records who entered; None where nobody asks for that.
    """

    def __init__(  # noqa: PLR0917 - one of each
        self,
        consistency: Consistency,
        workers: int,
        frames: Sequence[FrameSpec],
        last_step: int,
        updates: FrameUpdates,
        way: FrameWay,
        buffers: FrameBuffers,
        header: Callable[[FrameSpec, At, int], FrameHeader],
        counts: StalenessCounts,
        order: OrderFile | None = None,
    ) -> None:
        self._aggregator: LooseAggregator[Contribution] = LooseAggregator(consistency, workers, frames, last_step)
        self._updates, self._way, self._buffers = updates, way, buffers
        self._header, self._counts, self._order = header, counts, order
        self._frames = tuple(frames)
        self._numbers = {frame.offset: number for number, frame in enumerate(frames)}
        self._locks = {frame.offset: Lock() for frame in frames}

    def take(self, frame: FrameSpec, rank: int, at: At, contribution: Contribution) -> Answers | Outcome:
        """Take one worker's frame in; returns what is to be sent.

        Raises:
            StaleError: see `LooseAggregator.offer`.
        """
        with self._locks[frame.offset]:
            turn = self._aggregator.offer(frame, rank, at, contribution)
            if turn is None:
                return Outcome.DUPLICATE
            if turn.dropped is not None:
                self._buffers.give_back((contribution,))
            return self._carry_out(turn)

    def finish(self, rank: int) -> tuple[tuple[int, Answer], ...]:
        """Nothing more comes of a worker; returns what others are answered who waited for it."""
        answers: list[tuple[int, Answer]] = []
        for frame in self._frames:
            with self._locks[frame.offset]:
                answers += self._carry_out(self._aggregator.finish(frame, rank)).to
        return tuple(answers)

    def meet(self) -> None:
        """All workers have been answered everything, and get the parameters as they are."""
        self._aggregator.meet()

    def end(self) -> None:
        """Nothing more enters."""
        if self._order is not None:
            self._order.end()

    def close(self) -> None:
        """The server takes no part any more."""
        if self._order is not None:
            self._order.close()

    def _carry_out(self, turn: Turn[Contribution]) -> Answers:
        """Update, record, and make answers, whose parameters are copies: others update while they are sent."""
        frame = turn.frame
        for update in turn.updates:
            self._apply(frame, update)
        if turn.dropped is not None:
            self._counts.drop()
            self._record(frame, 0, (turn.dropped,), is_dropped=True)
        answers = tuple(self._answers(frame, turn.answers)) if turn.answers else ()
        return Answers(answers, bool(turn.updates))

    def _apply(self, frame: FrameSpec, update: Update[Contribution]) -> None:
        complete, updates = Complete(frame, update.at, update.contributions), self._updates
        scratch = updates.borrow()
        total = self._way.sum(complete, scratch)
        self._way.update(complete, total, self._header(frame, update.at, 0), scratch)
        updates.give_back(scratch)
        self._buffers.give_back(update.contributions)
        self._counts.add(update.entries)
        self._record(frame, update.version, update.entries)

    def _record(self, frame: FrameSpec, version: int, entries: Sequence[Entry], *, is_dropped: bool = False) -> None:
        if self._order is not None:
            number = self._numbers[frame.offset]
            self._order.add(Entered(number, each.rank, each.step, version, each.read, is_dropped) for each in entries)

    def _answers(self, frame: FrameSpec, answers: Sequence[Due]) -> list[tuple[int, Answer]]:
        values = self._updates.answering.parameters(frame).copy()
        return [(due.rank, Answer(self._header(frame, due.at, due.ahead), (values,))) for due in answers]
