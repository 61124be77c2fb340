"""The coordinator's messages of plans to `Plan`, and back."""

from __future__ import annotations

from taihu.core.base.errors import FrameError
from taihu.core.coordination.membership.messages import (
    length_from_message,
    length_to_message,
    updates_from_message,
    updates_to_message,
)
from taihu.core.coordination.plans.plan import Plan
from taihu.core.model.world import World
from taihu.core.planner.carriage import CARRIAGES, Carriage
from taihu.core.planner.groups import Group
from taihu.core.planner.sparse_route import SPARSE_ROUTES, SparseAlgorithm
from taihu.core.wire.frames.layouts import layout_from_message, layout_to_message
from taihu.protos import coordinator_pb2 as pb

__all__ = ["plan_from_message", "plan_to_message"]


def plan_to_message(plan: Plan) -> pb.GetPlanResponse:
    """Convert a plan."""
    return pb.GetPlanResponse(
        version=plan.version,
        from_step=plan.from_step,
        groups=[pb.Group(first_layer=g.first_layer, last_layer=g.last_layer) for g in plan.groups],
        layout=layout_to_message(plan.layout),
        frame_elements=plan.frame_elements,
        routes=[pb.Route.Value(f"ROUTE_{route.name}") for route in plan.routes],
        predicted_seconds=plan.predicted_seconds,
        length=length_to_message(plan.length),
        carriage=pb.Carriage.Value(f"CARRIAGE_{plan.carriage.upper()}"),
        updates=updates_to_message(plan.updates),
        servers=plan.world.servers,
        workers=plan.world.workers,
    )


def plan_from_message(message: pb.GetPlanResponse) -> Plan:
    """Convert a plan; raises ConfigError when its groups do not cover its layout, or nobody takes part."""
    return Plan(
        version=message.version,
        from_step=message.from_step,
        groups=tuple(Group(g.first_layer, g.last_layer) for g in message.groups),
        layout=layout_from_message(message.layout),
        frame_elements=message.frame_elements,
        routes=tuple(_route_from_message(route) for route in message.routes),
        predicted_seconds=message.predicted_seconds,
        length=length_from_message(message.length) if message.HasField("length") else None,
        carriage=_carriage_from_message(message.carriage),
        updates=updates_from_message(message.updates) if message.HasField("updates") else None,
        world=World(message.servers, message.workers),
    )


def _carriage_from_message(carriage: pb.Carriage.ValueType) -> Carriage:
    known = {pb.Carriage.Value(f"CARRIAGE_{known.upper()}"): known for known in CARRIAGES}
    if carriage not in known:
        raise FrameError(f"carriage {carriage} of a plan: not known to this version")
    return known[carriage]


def _route_from_message(route: pb.Route.ValueType) -> SparseAlgorithm:
    known = {pb.Route.Value(f"ROUTE_{known.name}"): known for known in SPARSE_ROUTES}
    if route not in known:
        raise FrameError(f"route {route} of a sparse allreduce: not known to this version")
    return known[route]
