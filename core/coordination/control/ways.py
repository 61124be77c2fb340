"""Calls of members and agents as gRPC carries them, and all other values in them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Final

from pydantic import ValidationError

from taihu.core.base.errors import FrameError
from taihu.core.base.words import told
from taihu.core.checkpoint.files import PartFile
from taihu.core.checkpoint.gathering import WrittenPart
from taihu.core.checkpoint.held_steps import MOST_HELD, Label
from taihu.core.coordination.control import asks
from taihu.core.coordination.control.kinds import Kind, Kinds, fields_of
from taihu.core.coordination.control.looking_ways import LOOKING, LOOKING_KINDS, Ways, ways_of
from taihu.core.coordination.membership.members import Begun
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job.update_rules import CONSTANTS, UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength
from taihu.core.model.world import World
from taihu.core.planner.carriage import CARRIAGES, Carriage
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.planner.profile import Profile
from taihu.core.planner.sparse_route import SPARSE_ROUTES, SparseAlgorithm
from taihu.core.settings import OptimizerSettings
from taihu.core.wire.frames.layouts import layout_from_message, layout_to_message
from taihu.protos import coordinator_pb2 as pb


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


def _held_of(found: Iterable[pb.HeldStep]) -> frozenset[Label]:
    held = frozenset(map(LABEL.of, found))
    if len(held) > MOST_HELD:
        raise FrameError(f"{len(held)} held steps: expected at most {MOST_HELD}")
    return held


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
    of = LABEL.to(part.label)
    if isinstance(part, asks.LeftOut):
        return pb.HeldPart(of=of, left_out=part.why)
    return pb.HeldPart(of=of, **part.file._asdict(), run=part.run)


def _part_of(message: pb.HeldPart) -> WrittenPart | asks.LeftOut:
    label, file = LABEL.of(message.of), _file_of(message)
    return asks.LeftOut(label, message.left_out) if file is None else WrittenPart(label, file, message.run)


def _begun_to(answer: Begun | asks.Again) -> pb.BeginResponse:
    if isinstance(answer, Begun):
        return pb.BeginResponse(**asdict(answer))
    return pb.BeginResponse(again=True, wanted=None if answer.wanted is None else LABEL.to(answer.wanted))


def _begun_of(found: pb.BeginResponse) -> Begun | asks.Again:
    if found.again:
        return asks.Again(LABEL.of(found.wanted) if found.HasField("wanted") else None)
    lines = (told(found.because), told(found.follows), told(found.shared_out))
    return Begun(found.generation, found.step, dict(found.compression), found.is_trial, *lines, found.servers)


def _profile_to(profile: Profile | None) -> Mapping[str, str]:
    return {"profile_json": "" if profile is None else json.dumps(profile.to_json())}


def _profile_of(found: pb.GetProfileResponse) -> Profile | None:
    return Profile.from_json(json.loads(found.profile_json)) if found.profile_json else None


LABEL: Final = fields_of(pb.HeldStep, Label, {})
HELD: Final = Kind[frozenset[Label]](lambda held: [LABEL.to(label) for label in sorted(held)], _held_of)
PART: Final = Kind[WrittenPart | asks.LeftOut](_part_to, _part_of)
UPDATES: Final = fields_of(
    pb.UpdateRules, UpdateRules, {OptimizerSettings: Kind(_optimizer_to, _optimizer_of)}, _check_updates
)
_KINDS: Final[Kinds] = MappingProxyType(
    {
        **LOOKING_KINDS,
        Layout: Kind(layout_to_message, layout_from_message),
        RunLength: fields_of(pb.RunLength, RunLength, {}, _check_length),
        StepMeasurement: fields_of(pb.StepMeasurement, StepMeasurement, {}, _check_times),
        UpdateRules: UPDATES,
        SparseAlgorithm: Kind(lambda route: pb.Route.Value(f"ROUTE_{route.name}"), _route_of),
        Carriage: Kind(lambda carriage: pb.Carriage.Value(f"CARRIAGE_{carriage.upper()}"), _carriage_of),
        World: Kind(asdict, lambda found: World(found.servers, found.workers), is_spread=True),
        PartFile | None: Kind(lambda file: {} if file is None else file._asdict(), _file_of, is_spread=True),
        frozenset[Label]: HELD,
        WrittenPart | asks.LeftOut: PART,
        Begun | asks.Again: Kind(_begun_to, _begun_of),
        Profile | None: Kind(_profile_to, _profile_of, is_spread=True),
    }
)
PLAN: Final = fields_of(pb.GetPlanResponse, Plan, _KINDS)
WAYS: Final[Ways] = MappingProxyType({**LOOKING, **ways_of(asks.ALL, _KINDS)})
"""All calls."""
