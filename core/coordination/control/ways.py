"""Calls of members and agents as gRPC carries them, and all other values in them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from taihu.core.base.errors import FrameError
from taihu.core.base.words import told
from taihu.core.checkpoint.files import PartFile
from taihu.core.checkpoint.gathering import WrittenPart
from taihu.core.checkpoint.held_steps import MOST_HELD, Label
from taihu.core.coordination.control import asks
from taihu.core.coordination.control.control import Ask
from taihu.core.coordination.control.kinds import (
    NUMBERS,
    OR_ZERO,
    TOLD,
    WORDS,
    Kind,
    checked,
    each,
    fields_of,
    maybe,
    one,
    spread,
)
from taihu.core.coordination.control.looking_ways import LIFE, LOOKING, PROGRESS, STATE, Way, Ways, by_ask
from taihu.core.coordination.membership.members import Begun
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job.update_rules import CONSTANTS, UpdateRules
from taihu.core.model.run_length import RunLength
from taihu.core.model.world import World
from taihu.core.planner.carriage import CARRIAGES, Carriage
from taihu.core.planner.groups import Group
from taihu.core.planner.measurement import GroupMeasurement, StepMeasurement
from taihu.core.planner.profile import Profile
from taihu.core.planner.sparse_route import SPARSE_ROUTES, SparseAlgorithm
from taihu.core.settings import OptimizerSettings
from taihu.core.wire.frames.codec import layout_from_message, layout_to_message
from taihu.protos import coordinator_pb2 as pb

__all__ = ["BEGUN", "HELD", "LENGTH", "PART", "PLAN", "UPDATES", "WAYS"]

A = TypeVar("A")


def _check_length(length: RunLength) -> None:
    if min(asdict(length).values()) < 1:
        raise FrameError(f"{length}: expected at least one of each")


def _check_times(step: StepMeasurement) -> None:
    seconds = [step.forward_seconds, *step.backward_seconds, step.exchange_seconds, step.seconds]
    for group in step.groups:
        seconds += (group.compress_seconds, group.up_seconds, group.down_seconds)
    if not all(map(math.isfinite, seconds)):
        raise FrameError(f"measurements of step {step.step}: expected finite times")


def _check_updates(updates: UpdateRules) -> None:
    optimizers, decays, owners = len(updates.optimizers), updates.weight_decays, updates.owners
    groups = len(decays)
    if not all(0 <= decay < math.inf for decay in decays) or any(own >= groups for own in updates.parameter_groups):
        raise FrameError(f"update rules of {groups} parameter groups: expected weight decays, and layers of these")
    if not optimizers or len(owners) != groups or any(owner >= optimizers for owner in owners):
        raise FrameError(
            f"update rules of {optimizers} optimizers and {groups} parameter groups: expected one of the optimizers "
            "for each group"
        )


def _optimizer_to(optimizer: OptimizerSettings) -> pb.UpdateRule:
    return pb.UpdateRule(**optimizer.model_dump(include=set(CONSTANTS)))


def _optimizer_of(message: pb.UpdateRule) -> OptimizerSettings:
    try:
        return OptimizerSettings.model_validate({key: getattr(message, key) for key in CONSTANTS})
    except ValidationError as error:
        raise FrameError(f"update rules that make no sense: {error.errors()[0]['msg']}") from None


def _check_held(held: frozenset[Label]) -> None:
    if len(held) > MOST_HELD:
        raise FrameError(f"{len(held)} held steps: expected at most {MOST_HELD}")


def _carriage_of(number: pb.Carriage.ValueType) -> Carriage:
    known = {pb.Carriage.Value(f"CARRIAGE_{known.upper()}"): known for known in CARRIAGES}
    if number not in known:
        raise FrameError(f"carriage {number} of a plan: not known to this version")
    return known[number]


def _route_of(number: pb.Route.ValueType) -> SparseAlgorithm:
    known = {pb.Route.Value(f"ROUTE_{known.name}"): known for known in SPARSE_ROUTES}
    if number not in known:
        raise FrameError(f"route {number} of a sparse allreduce: not known to this version")
    return known[number]


def _file_of(message: pb.StoredRequest | pb.HeldPart) -> PartFile | None:
    return None if message.left_out else PartFile(told(message.name), message.size_bytes, told(message.sha256))


def _part_to(part: WrittenPart | asks.LeftOut) -> pb.HeldPart:
    of = _LABEL.to(part.label)
    if isinstance(part, asks.LeftOut):
        return pb.HeldPart(of=of, left_out=part.why)
    return pb.HeldPart(of=of, **part.file._asdict(), run=part.run)


def _part_of(message: pb.HeldPart) -> WrittenPart | asks.LeftOut:
    label, file = _LABEL.of(message.of), _file_of(message)
    return asks.LeftOut(label, message.left_out) if file is None else WrittenPart(label, file, message.run)


def _begun_to(answer: Begun | asks.Again) -> pb.BeginResponse:
    message: pb.BeginResponse = _BEGUN.to(answer) if isinstance(answer, Begun) else _AGAIN.to(answer)
    message.again = not isinstance(answer, Begun)
    return message


LENGTH: Final = checked(fields_of(pb.RunLength, RunLength), _check_length)
UPDATES: Final = checked(
    fields_of(
        pb.UpdateRules,
        UpdateRules,
        {
            "optimizers": each(Kind(_optimizer_to, _optimizer_of)),
            **dict.fromkeys(("weight_decays", "parameter_groups", "owners"), NUMBERS),
        },
    ),
    _check_updates,
)
_LAYOUT: Final = Kind(layout_to_message, layout_from_message)
_STEPS: Final = each(
    checked(
        fields_of(
            pb.StepMeasurement,
            StepMeasurement,
            {"backward_seconds": NUMBERS, "groups": each(fields_of(pb.GroupMeasurement, GroupMeasurement))},
        ),
        _check_times,
    )
)
_LABEL: Final = fields_of(pb.HeldStep, Label)
HELD: Final = checked(
    Kind[frozenset[Label]](
        lambda held: [_LABEL.to(label) for label in sorted(held)], lambda found: frozenset(map(_LABEL.of, found))
    ),
    _check_held,
)
PART: Final = Kind[WrittenPart | asks.LeftOut](_part_to, _part_of)
_FILE: Final = spread(lambda file: {} if file is None else file._asdict(), _file_of)
PLAN: Final = fields_of(
    pb.GetPlanResponse,
    Plan,
    {
        "groups": each(fields_of(pb.Group, Group)),
        "layout": _LAYOUT,
        "routes": each(Kind(lambda route: pb.Route.Value(f"ROUTE_{route.name}"), _route_of)),
        "length": maybe(LENGTH),
        "carriage": Kind(lambda carriage: pb.Carriage.Value(f"CARRIAGE_{carriage.upper()}"), _carriage_of),
        "updates": maybe(UPDATES),
        "world": spread(asdict, lambda found: World(found.servers, found.workers)),
    },
)
_BEGUN: Final = fields_of(pb.BeginResponse, Begun, {"compression": WORDS, "because": TOLD})
_AGAIN: Final = fields_of(pb.BeginResponse, asks.Again, {"wanted": maybe(_LABEL)})
_PROFILE: Final = spread(
    lambda profile: {"profile_json": "" if profile is None else json.dumps(profile.to_json())},
    lambda found: Profile.from_json(json.loads(found.profile_json)) if found.profile_json else None,
)
BEGUN: Final = Kind[Begun | asks.Again](
    _begun_to, lambda found: _AGAIN.of(found) if found.again else _BEGUN.of(found)
)
_HEARD: Final = fields_of(
    pb.HeartbeatResponse, asks.Heard, {"state": STATE, "reason": TOLD, "stop_reason": TOLD, "last_step": OR_ZERO}
)
_PEERS: Final = fields_of(
    pb.JoinResponse,
    asks.Peers,
    dict.fromkeys(("server_addresses", "worker_addresses", "worker_incarnations"), NUMBERS),
)
_ENDED: Final = fields_of(pb.FinishResponse, asks.End, {"state": STATE, "reason": TOLD})
_ASSIGNED: Final = fields_of(
    pb.AttendResponse, asks.Assigned, {"ranks": NUMBERS, "state": STATE, "reason": TOLD, "awaited": TOLD}
)
_KNOWN: Final = fields_of(pb.GetProfileResponse, asks.Known, {"plan": maybe(PLAN), "profile": _PROFILE})


def _of_member(name: str, ask: type[Ask[A]], answer: Kind[A] | None = None, **kinds: Kind[Any]) -> Way[A]:
    return Way(name, ask, answer, {"member": LIFE, **kinds})


WAYS: Final[Ways] = MappingProxyType(
    {
        **LOOKING,
        **by_ask(
            _of_member("Begin", asks.Begin, BEGUN, held=HELD, part=maybe(PART)),
            _of_member(
                "Join",
                asks.Join,
                _PEERS,
                address=TOLD,
                layout=maybe(_LAYOUT),
                settings=WORDS,
                length=maybe(LENGTH),
            ),
            _of_member("Vouch", asks.Vouch, caller=LIFE),
            _of_member("BringLayout", asks.BringLayout, layout=_LAYOUT, updates=maybe(UPDATES)),
            _of_member(
                "Heartbeat",
                asks.Heartbeat,
                _HEARD,
                progress=PROGRESS,
                wants_stop=TOLD,
                known_last_step=OR_ZERO,
            ),
            _of_member("GetPlan", asks.GetPlan, PLAN),
            _of_member("ReportSteps", asks.ReportSteps, PLAN, steps=_STEPS),
            _of_member("FixLastStep", asks.FixLastStep, one(pb.FixLastStepResponse, "last_step")),
            _of_member(
                "DecideCheckpoint", asks.DecideCheckpoint, fields_of(pb.DecideCheckpointResponse, asks.Decision)
            ),
            _of_member("Stored", asks.Stored, file=_FILE, left_out=TOLD),
            _of_member("Copy", asks.Copy, of=_LABEL),
            _of_member("Compare", asks.Compare, parameters_sha256=TOLD),
            _of_member(
                "Finish",
                asks.Finish,
                _ENDED,
                progress=maybe(PROGRESS),
                parameters_sha256=TOLD,
                failure=TOLD,
                exit_code=maybe(),
            ),
            Way("GetProfile", asks.GetProfile, _KNOWN, {}),
            Way("Attend", asks.Attend, _ASSIGNED, {"name": TOLD, "runs": NUMBERS}),
        ),
    }
)
"""All calls."""
