"""Routes and updates whose points are asked for faults: they stand between, and change nothing.

They are made only where a job asks for faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.allreduce.order.operation import Operation, OperationKey
from taihu.allreduce.ring.schedule import Chunks
from taihu.core.chaos.points import Chaos, Point
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import State
from taihu.core.compression import GroupCompressor, Selection
from taihu.core.coordination.plans.plan import Plan
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import At
from taihu.worker.exchange.base.route import Held, Route, RouteEvents, Updated
from taihu.worker.exchange.ring.dense import RingUpdates

__all__ = ["DisturbedRoute", "DisturbedUpdates", "disturbed_events"]


def disturbed_events(events: RouteEvents, chaos: Chaos) -> RouteEvents:
    """`events`, of which the end of each part of a group passes a point."""

    def updated(part: Updated) -> None:
        chaos.passes(Point.FETCH, part.at.step)
        events.updated(part)

    return replace(events, updated=updated)


class DisturbedRoute(Route):
    """A route that passes points as it starts and sends."""

    def __init__(self, route: Route, chaos: Chaos) -> None:
        self._route = route
        self._chaos = chaos
        self._step = 0
        self.path = route.path
        self.shares_sums = route.shares_sums

    @override
    def start(self) -> None:
        self._chaos.passes(Point.INITIALIZE)
        self._route.start()

    @override
    def adopt(self, plan: Plan) -> None:
        self._route.adopt(plan)

    @override
    def parts(self, group: int) -> int:
        return self._route.parts(group)

    @override
    def begin(self, at: At) -> None:
        self._step = at.step
        self._route.begin(at)

    @override
    def tell(self, rates: Sequence[float]) -> None:
        self._route.tell(rates)

    @override
    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        self._chaos.passes(Point.PUSH, self._step)
        return self._route.send(group, loss_scale=loss_scale, skipped=skipped)

    @override
    def apply(self, at: At, loss_scale: float) -> None:
        self._route.apply(at, loss_scale)

    @override
    def send_selected(self, group: int, selection: Selection, compressor: GroupCompressor) -> int:
        self._chaos.passes(Point.PUSH, self._step)
        return self._route.send_selected(group, selection, compressor)

    @override
    def fetch(self, group: int, step: int) -> None:
        self._route.fetch(group, step)

    @override
    def held(self) -> Held:
        return self._route.held()

    @override
    def hold(self, held: HeldSteps, make_state: Callable[[], State]) -> bool:
        return self._route.hold(held, make_state)

    @override
    def keep(self, step: int, *, until_durable: bool) -> None:
        self._route.keep(step, until_durable=until_durable)

    @override
    def agree(self, flags: NDArray[np.float64]) -> None:
        self._route.agree(flags)

    @override
    def agree_on_skipping(self, *, overflowed: bool) -> bool:
        return self._route.agree_on_skipping(overflowed=overflowed)


class DisturbedUpdates(RingUpdates):
    """The updates of a ring, which pass points where a part is summed, and where it is updated by its sum."""

    def __init__(self, updates: RingUpdates, chaos: Chaos) -> None:
        self._updates = updates
        self._chaos = chaos
        self.shares_sums = updates.shares_sums
        self.is_told_at_end = False

    @override
    def bring(self) -> None:
        self._updates.bring()

    @override
    def adopt(self, plan: Plan, chunks: list[Chunks]) -> None:
        self._updates.adopt(plan, chunks)

    @override
    def begin(self, at: At) -> None:
        self._updates.begin(at)

    @override
    def operation(self, key: OperationKey, chunks: Chunks, loss_scale: float) -> Operation:
        operation, step = self._updates.operation(key, chunks, loss_scale), key.at.step
        operation.on_complete = self._passing(Point.SUM, step, operation.on_complete)
        operation.on_final = self._passing(Point.UPDATE, step, operation.on_final)
        return operation

    @override
    def apply(self, at: At, loss_scale: float, events: RouteEvents) -> None:
        self._updates.apply(at, loss_scale, events)

    @override
    def fetch(self, group: int, step: int, events: RouteEvents) -> None:
        self._updates.fetch(group, step, events)

    @override
    def held(self) -> Held:
        return self._updates.held()

    @override
    def hold(self, held: HeldSteps, make_state: Callable[[], State]) -> bool:
        return self._updates.hold(held, make_state)

    @override
    def agree(self, flags: NDArray[np.float64]) -> None:
        self._updates.agree(flags)

    def _passing(self, point: Point, step: int, then: Callable[[FrameSpec], None]) -> Callable[[FrameSpec], None]:
        def passing(frame: FrameSpec) -> None:
            self._chaos.passes(point, step)
            then(frame)

        return passing
