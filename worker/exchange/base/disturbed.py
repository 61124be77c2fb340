"""Events and operations whose points are asked for faults; they are made only where a job asks for some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from taihu.allreduce.order.operation import Operation
from taihu.core.chaos.points import Chaos, Point
from taihu.worker.exchange.base.route import RouteEvents, Updated

Part = TypeVar("Part")


def disturbed_events(events: RouteEvents, chaos: Chaos) -> RouteEvents:
    """`events`, of which the end of each part of a group passes a point."""

    def updated(part: Updated) -> None:
        chaos.passes(Point.FETCH, part.at.step)
        events.updated(part)

    return replace(events, updated=updated)


def disturb(operation: Operation, chaos: Chaos) -> None:
    """Have an operation pass points where a part is summed, and where it is updated by its sum."""

    def passing(point: Point, then: Callable[[Part], None]) -> Callable[[Part], None]:
        def passed(part: Part) -> None:
            chaos.passes(point, operation.key.at.step)
            then(part)

        return passed

    operation.on_complete = passing(Point.SUM, operation.on_complete)
    operation.on_final = passing(Point.UPDATE, operation.on_final)
