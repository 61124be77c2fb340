"""The coordinator's messages to the words of `membership`, and back."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pydantic import ValidationError

from taihu.core.base.errors import FrameError
from taihu.core.base.words import told
from taihu.core.coordination.membership.members import Begun, MemberId, Progress, Role, RunState
from taihu.core.job.update_rules import CONSTANTS, UpdateRules
from taihu.core.model.run_length import RunLength
from taihu.core.planner.measurement import GroupMeasurement, StepMeasurement
from taihu.core.settings import OptimizerSettings
from taihu.protos import coordinator_pb2 as pb

__all__ = [
    "begun_from_message",
    "begun_to_message",
    "length_from_message",
    "length_to_message",
    "member_from_message",
    "member_to_message",
    "plain",
    "progress_from_message",
    "progress_to_message",
    "state_from_message",
    "state_to_message",
    "step_from_message",
    "step_to_message",
    "updates_from_message",
    "updates_to_message",
]

M = TypeVar("M", bound=Message)


def plain(message: M) -> M:
    """`message` itself, with every text in it as one line that prints (`words.told`); not for layouts."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING and isinstance(value, str):
            setattr(message, field.name, told(value))
        elif isinstance(value, Message):
            plain(value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value:
                plain(each)
    return message


def member_to_message(member: MemberId, incarnation: int) -> pb.Member:
    """Convert a member."""
    return pb.Member(role=pb.Role.Value(f"ROLE_{member.role.name}"), rank=member.rank, incarnation=incarnation)


def member_from_message(message: pb.Member) -> tuple[MemberId, int]:
    """The member and its incarnation; raises FrameError for a role that is not known."""
    if message.role not in (pb.ROLE_SERVER, pb.ROLE_WORKER):
        raise FrameError(f"member role {message.role}: expected ROLE_SERVER or ROLE_WORKER")
    role = Role.SERVER if message.role == pb.ROLE_SERVER else Role.WORKER
    return MemberId(role, message.rank), message.incarnation


def begun_to_message(begun: Begun) -> pb.BeginResponse:
    """Convert a generation that may be joined."""
    return pb.BeginResponse(**asdict(begun))


def begun_from_message(message: pb.BeginResponse) -> Begun:
    """Convert a generation that may be joined."""
    compression, because = dict(message.compression), told(message.because)
    return Begun(message.generation, message.step, compression, message.is_trial, because)


def length_to_message(length: RunLength | None) -> pb.RunLength | None:
    """Convert the length of a run, as far as it is known."""
    return None if length is None else pb.RunLength(**asdict(length))


def length_from_message(message: pb.RunLength) -> RunLength:
    """Convert the length of a run; raises FrameError for one without samples or steps."""
    length = RunLength(message.samples, message.steps_per_epoch, message.total_steps)
    if min(asdict(length).values()) < 1:
        raise FrameError(f"{length}: expected at least one of each")
    return length


def updates_to_message(updates: UpdateRules | None) -> pb.UpdateRules | None:
    """Convert the optimizers by which servers update, if there are any."""
    if updates is None:
        return None
    return pb.UpdateRules(
        weight_decays=updates.weight_decays,
        parameter_groups=updates.parameter_groups,
        optimizers=[pb.UpdateRule(**each.model_dump(include=set(CONSTANTS))) for each in updates.optimizers],
        owners=updates.owners,
    )


def updates_from_message(message: pb.UpdateRules) -> UpdateRules:
    """Convert the optimizers by which servers update; raises FrameError where they make no sense."""
    try:
        optimizers = tuple(
            OptimizerSettings.model_validate({key: getattr(each, key) for key in CONSTANTS})
            for each in message.optimizers
        )
    except ValidationError as error:
        raise FrameError(f"update rules that make no sense: {error.errors()[0]['msg']}") from None
    decays, groups, owners = tuple(message.weight_decays), tuple(message.parameter_groups), tuple(message.owners)
    if not all(0 <= decay < math.inf for decay in decays) or any(group >= len(decays) for group in groups):
        raise FrameError(
            f"update rules of {len(decays)} parameter groups: expected weight decays, and layers of these"
        )
    if not optimizers or len(owners) != len(decays) or any(owner >= len(optimizers) for owner in owners):
        raise FrameError(
            f"update rules of {len(optimizers)} optimizers and {len(decays)} parameter groups: expected one of the "
            "optimizers for each group"
        )
    return UpdateRules(optimizers, decays, groups, owners)


def progress_to_message(progress: Progress) -> pb.Progress:
    """Convert a progress report."""
    return pb.Progress(**asdict(progress))


def progress_from_message(message: pb.Progress) -> Progress:
    """Convert a progress report."""
    values = {item.name: getattr(message, item.name) for item in fields(Progress)}
    return Progress(**{**values, "begun": tuple(message.begun)})


def state_to_message(state: RunState) -> pb.RunState.ValueType:
    """Convert the state of a run."""
    return pb.RunState.Value(f"RUN_STATE_{state.name}")


def state_from_message(state: pb.RunState.ValueType) -> RunState:
    """Convert the state of a run; raises FrameError for one that is not known."""
    known = {state_to_message(known): known for known in RunState}
    if state not in known:
        raise FrameError(f"run state {state}: not known to this version")
    return known[state]


def step_to_message(step: StepMeasurement) -> pb.StepMeasurement:
    """Convert a measured step."""
    return pb.StepMeasurement(
        step=step.step,
        serial=step.serial,
        forward_seconds=step.forward_seconds,
        backward_seconds=step.backward_seconds,
        groups=[pb.GroupMeasurement(**asdict(group)) for group in step.groups],
        exchange_seconds=step.exchange_seconds,
        path=step.path,
        seconds=step.seconds,
    )


def step_from_message(message: pb.StepMeasurement) -> StepMeasurement:
    """Convert a measured step; raises FrameError for numbers that are no times."""
    groups = tuple(
        GroupMeasurement(**{item.name: getattr(group, item.name) for item in fields(GroupMeasurement)})
        for group in message.groups
    )
    step = StepMeasurement(
        message.step,
        message.serial,
        message.forward_seconds,
        tuple(message.backward_seconds),
        groups,
        message.exchange_seconds,
        message.path,
        message.seconds,
    )
    seconds = [step.forward_seconds, *step.backward_seconds, step.exchange_seconds, step.seconds]
    seconds += [value for group in groups for value in (group.compress_seconds, group.up_seconds, group.down_seconds)]
    if not all(map(math.isfinite, seconds)):
        raise FrameError(f"measurements of step {step.step}: expected finite times")
    return step
