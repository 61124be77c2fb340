"""A ring with ZeRO: every worker updates a part of the parameters, and keeps the optimizer state of that.

Gradients are summed by a reduce-scatter, and whoever completes a sum updates that part. In stages 1 and 2 the result
goes on around the ring. In stage 3 nothing does until somebody needs it: an allgather brings it before forward and
again before backward (docs/methods.md section 5). Sums have the order of a ring without ZeRO, and so have results its
bits. Where the whole gradient is clipped, a reduce-scatter of all groups comes first, then the squares of what each
owns are summed, and then each updates, with the same factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import Operation, OperationKey
from taihu.allreduce.ring.schedule import Chunks, Ring, buffer_chunks, summed_by
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import Elements, State, named
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.optimization import OptimizerState, WholeNorm, in_steps
from taihu.core.planner.groups import group_bounds
from taihu.core.planner.partition import FrameSpec, Piece, Shard
from taihu.core.wire.frames.headers import At, ValueType
from taihu.kernels.base.half import from_half, to_half
from taihu.worker.exchange.base.recording import Recording
from taihu.worker.exchange.base.route import Arrived, Held, RouteEvents
from taihu.worker.exchange.base.updates import check_finite
from taihu.worker.exchange.ring.dense import RingUpdates, chunks_of
from taihu.worker.memory.arenas import Arenas
from taihu.worker.memory.initial_parameters import InitialParameters

Values = NDArray[np.float32]

# The number of the operation that sums squares, behind those of all gathers of a group.
_SQUARES: Final = 1 << 30


class Owners(RingUpdates):
    """Each worker updates the chunk whose sums it completes (`RingUpdates`); arenas are those of the stage of ZeRO.

    A part that was updated in a step is not updated in it again, whatever is replayed.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        communicator: Communicator,
        arenas: Arenas,
        *,
        recording: Recording,
        initial: InitialParameters | None = None,
    ) -> None:
        self._communicator = communicator
        self._arenas = arenas
        self._recording = recording
        self._initial = initial
        self._checks = job.refuses_non_finite
        self._gathers_results = job.stage.divides_parameters
        self._fetches = arenas.parameter_pages is not None
        self._largest_norm = job.whole_norm
        self.shares_sums = communicator.size
        self.sums_at_once = False
        self._plan = plan
        self._chunks = chunks_of(plan, communicator.size, arenas.value_type)
        self._attempt = 0
        # When each group was gathered last, and how often. A neighbour may still take part in that when plans change.
        self._gathers: dict[int, tuple[At, int]] = {}
        self._total: Values = np.empty(0, dtype=np.float32)
        self._updated: dict[int, int] = {}
        # Takes what is updated here; parts of a step that are still to be.
        self._held: HeldSteps | None = None
        self._make_state: Callable[[], State] = State
        self._left = 0
        self._chunk = summed_by(communicator.rank, communicator.size)
        elements = Shard(plan.layout, communicator.size, self._chunk).elements
        self._state = OptimizerState(in_steps(job.server_optimizer, plan.length), elements)
        self._state.warm_up()
        # In other stages they lie in the arena that holds all parameters.
        self._own: Values = np.zeros(elements if self._fetches else 0, dtype=np.float32)

    @override
    def bring(self) -> None:
        """Bring the initial parameters, group by group where they do not stay."""
        pages = self._arenas.parameter_pages
        if pages is None:
            self._communicator.broadcast(self._arenas.parameters)
            return
        for group, (start, stop) in enumerate(group_bounds(self._plan.layout, self._plan.groups)):
            if self._communicator.rank == 0 and self._initial is not None:
                self._initial.prepare(FrameSpec(group, start, stop - start, (Piece(start, stop),)))
            self._communicator.broadcast(self._arenas.parameters[start:stop])
            for own, piece in self._own_pieces(group):
                np.copyto(own, self._arenas.parameters[piece.start : piece.stop])
            pages.release(start, stop)

    @override
    def adopt(self, plan: Plan, chunks: list[Chunks]) -> None:
        self._plan = plan
        self._chunks = chunks

    @override
    def begin(self, at: At) -> None:
        self._attempt = at.attempt
        self._left = sum(len(chunks[self._chunk]) for chunks in self._chunks)
        if not self._left:
            self._end_held(at.step)

    @override
    def agree(self, flags: NDArray[np.float64]) -> None:
        if self._fetches:
            self._communicator.broadcast(flags, ValueType.FP64)

    @override
    def held(self) -> Held:
        """The chunks of all groups, in the order of the optimizer state; parameters are copies."""
        bounds = Shard(self._plan.layout, self._communicator.size, self._chunk).bounds
        parameters = self._own
        if not self._fetches:
            parameters = np.concatenate([self._arenas.parameters[start:stop] for start, stop in bounds])
        return Held(Elements(bounds, named(parameters, self._state.arrays)))

    @override
    def hold(self, held: HeldSteps, make_state: Callable[[], State]) -> bool:
        self._held, self._make_state = held, make_state
        return True

    @override
    def operation(self, key: OperationKey, chunks: Chunks, loss_scale: float) -> Operation:
        """A reduce-scatter; in stages 1 and 2 results go on around the ring."""
        scatters = self._gathers_results or self._largest_norm is not None
        update = partial(self._update, key.at.step, key.group, 1.0 / (self._communicator.size * loss_scale))
        return Operation(
            key,
            self._arenas.sent,
            self._arenas.value_type,
            Ring(self._communicator.rank, chunks, "reduce-scatter" if scatters else "both"),
            results=None if scatters else self._arenas.received,
            on_complete=update if self._largest_norm is None else partial(self._check, key.at.step, key.group),
        )

    @override
    def apply(self, at: At, loss_scale: float, events: RouteEvents) -> None:
        """Sum the squares of all owners, then update and, in stages 1 and 2, bring the results to all."""
        assert self._largest_norm is not None  # noqa: S101
        norm = WholeNorm(self._largest_norm, 1.0 / (self._communicator.size * loss_scale))
        for piece in self._owned():
            norm.add(self._sum_of(piece))
        pieces = norm.pieces()
        chunks = buffer_chunks(len(pieces), self._communicator.size, pieces.itemsize)
        squares = Operation(
            OperationKey(at, 0, _SQUARES), pieces, ValueType.FP32, Ring(self._communicator.rank, chunks)
        )

        def update() -> None:
            norm.replace(pieces)
            self._update_all(at, norm.factor / (self._communicator.size * loss_scale), events)

        squares.on_finished = partial(events.later, at, update)
        self._communicator.start(squares)

    def _update_all(self, at: At, scale: float, events: RouteEvents) -> None:
        """Update what this worker owns, and gather where everybody has all parameters."""
        for group, chunks in enumerate(self._chunks):
            for frame in chunks[self._chunk]:
                self._update(at.step, group, scale, frame)
        if self._gathers_results:
            events.applied(at)
            return
        missing = iter(range(len(self._chunks), -1, -1))
        next(missing)

        def gathered() -> None:
            # Called by one thread at a time, as everything that comes of the left neighbour is.
            if not next(missing):
                events.applied(at)

        for group, chunks in enumerate(self._chunks):
            ring = Ring(self._communicator.rank, chunks, "allgather")
            results = Operation(OperationKey(at, group, 1), self._arenas.received, self._arenas.value_type, ring)
            results.on_finished = partial(events.later, at, gathered)
            self._communicator.start(results)

    @override
    def fetch(self, group: int, step: int, events: RouteEvents) -> None:
        """An allgather, of which this worker's part is copied first."""
        half = self._arenas.half
        for own, piece in self._own_pieces(group):
            place = self._arenas.received[piece.start : piece.stop]
            if half is None:
                np.copyto(place, own)
            else:
                to_half(own, half.kind, place)
        operation = Operation(
            self._next_gather(group, step),
            self._arenas.received,
            self._arenas.value_type,
            Ring(self._communicator.rank, self._chunks[group], "allgather"),
        )
        operation.on_finished = partial(_gathered, group, operation, events)
        self._communicator.start(operation)

    def _next_gather(self, group: int, step: int) -> OperationKey:
        at = At(self._plan.version, step, self._attempt)
        last, count = self._gathers.get(group, (at, 0))
        count = count + 1 if last == at else 1
        self._gathers[group] = at, count
        return OperationKey(at, group, count)

    def _check(self, step: int, group: int, frame: FrameSpec) -> None:
        """The sum of a part that this worker owns is complete; it is applied when all are."""
        for piece in frame.pieces if self._checks else ():
            check_finite(self._sum_of(piece), group, step)

    def _update(self, step: int, group: int, scale: float, frame: FrameSpec) -> None:
        """The sum of a part that this worker owns is complete: apply it."""
        first = frame.pieces[0].start
        if self._updated.get(first) == step:
            return
        self._updated[first] = step
        half, held = self._arenas.half, self._held
        if held is not None:
            held.begin(step, self._make_state)
        taken = frame.offset
        for piece in frame.pieces:
            gradient = self._sum_of(piece)
            if self._checks:
                check_finite(gradient, group, step)
            parameters = self._own[taken:] if self._fetches else self._arenas.parameters[piece.start :]
            parameters = parameters[: len(gradient)]
            recorded = self._recording.enabled
            with (
                self._recording.updating(step, group, piece.start, parameters, gradient)
                if recorded
                else nullcontext()
            ):
                self._state.update(taken, parameters, gradient, step, scale)
            if half is not None and half.keeps:
                to_half(parameters, half.kind, half.parameters[piece.start : piece.stop])
            if held is not None:
                stop = taken + len(gradient)
                own = {name: values[taken:stop] for name, values in self._state.arrays.items()}
                held.put_range(step, named(parameters, own), taken)
            taken += len(gradient)
        self._left -= 1
        if not self._left:
            self._end_held(step)

    def _end_held(self, step: int) -> None:
        """All that this worker updates in a step is held, and others have not all of it yet."""
        if self._held is not None:
            self._held.begin(step, self._make_state)
            self._held.end(step)

    def _sum_of(self, piece: Piece) -> Values:
        """The complete sum of a range, in fp32; valid until the next call, which comes from the same thread."""
        half = self._arenas.half
        if half is None:
            return self._arenas.gradients[piece.start : piece.stop]
        count = piece.stop - piece.start
        if len(self._total) < count:
            self._total = np.empty(count, dtype=np.float32)
        from_half(half.gradients[piece.start : piece.stop], half.kind, self._total[:count])
        return self._total[:count]

    def _owned(self) -> Iterator[Piece]:
        """The ranges of all elements that this worker updates."""
        for chunks in self._chunks:
            for frame in chunks[self._chunk]:
                yield from frame.pieces

    def _own_pieces(self, group: int) -> Iterator[tuple[Values, Piece]]:
        """The place of this worker's chunk of the group, and its range of all elements."""
        for frame in self._chunks[group][self._chunk]:
            taken = frame.offset
            for piece in frame.pieces:
                count = piece.stop - piece.start
                yield self._own[taken : taken + count], piece
                taken += count


def _gathered(group: int, operation: Operation, events: RouteEvents) -> None:
    sent, received = operation.sent_bytes, operation.received_bytes
    events.arrived(Arrived(group, operation.key.at.attempt, sent, received))
