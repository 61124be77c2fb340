"""Calls of whoever looks on as gRPC carries them, and the words of a run that all calls share.

They need no arrays, as commands start with them: `taihu.core.coordination.control.ways` has the calls of members.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from taihu.core.base.errors import FrameError
from taihu.core.coordination.control.control import Ask
from taihu.core.coordination.control.kinds import NUMBERS, TOLD, Kind, each, fields_of, one
from taihu.core.coordination.control.looking import AgentStatus, GetStatus, MemberStatus, RunStatus, Stop
from taihu.core.coordination.membership.members import Life, MemberId, Progress, Role, RunState
from taihu.protos import coordinator_pb2 as pb

__all__ = ["COORDINATOR_SERVICE", "LIFE", "LOOKING", "PROGRESS", "STATE", "STATUS", "Way", "Ways", "by_ask"]

A = TypeVar("A")

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["CoordinatorService"]
COORDINATOR_SERVICE: Final = _SERVICE.full_name


class Way(Generic[A]):
    """A call as gRPC carries it.

    Args:
        name: of the method.
        ask: the class of what is asked.
        answer: of the method's response; None where it says nothing.
        kinds: of the fields of `ask`.

    Attributes:
        path: of the method.
        request: the class of its message.
        response: the class of that which answers it.
        asked: `ask` and its message.
        answered: the answer and its message.
    """

    def __init__(self, name: str, ask: type[Ask[A]], answer: Kind[A] | None, kinds: Mapping[str, Kind[Any]]) -> None:
        method = _SERVICE.methods_by_name[name]
        self.name = name
        self.ask = ask
        self.path = f"/{COORDINATOR_SERVICE}/{name}"
        self.request: type[Message] = GetMessageClass(method.input_type)
        self.response: type[Message] = GetMessageClass(method.output_type)
        self.asked: Kind[Ask[A]] = fields_of(self.request, ask, kinds)
        self.answered: Kind[Any] = answer or Kind(lambda _: self.response(), lambda _: None)


Ways = Mapping[type[Ask[Any]], Way[Any]]
"""Calls by the class of what is asked."""


def by_ask(*ways: Way[Any]) -> Ways:
    """The ways by what they ask."""
    return MappingProxyType({way.ask: way for way in ways})


def _life_of(message: pb.Member) -> Life:
    if message.role not in (pb.ROLE_SERVER, pb.ROLE_WORKER):
        raise FrameError(f"member role {message.role}: expected ROLE_SERVER or ROLE_WORKER")
    role = Role.SERVER if message.role == pb.ROLE_SERVER else Role.WORKER
    return Life(MemberId(role, message.rank), message.incarnation)


def _life_to(life: Life) -> pb.Member:
    member = life.member
    return pb.Member(role=pb.Role.Value(f"ROLE_{member.role.name}"), rank=member.rank, incarnation=life.incarnation)


def _state_to(state: RunState) -> pb.RunState.ValueType:
    return pb.RunState.Value(f"RUN_STATE_{state.name}")


_STATES: Final = MappingProxyType({_state_to(state): state for state in RunState})


def _state_of(number: pb.RunState.ValueType) -> RunState:
    if number not in _STATES:
        raise FrameError(f"run state {number}: not known to this version")
    return _STATES[number]


LIFE: Final = Kind(_life_to, _life_of)
STATE: Final = Kind(_state_to, _state_of)
PROGRESS: Final = fields_of(
    pb.Progress,
    Progress,
    {"begun": NUMBERS, **dict.fromkeys(("test_metric", "path", "waits_for", "busy_with", "waits_in"), TOLD)},
)
# Without its life: who knows that may speak as the member.
_MEMBER: Final = Kind[MemberId](lambda member: _life_to(Life(member, 0)), lambda message: _life_of(message).member)
_MEMBERS: Final = each(
    fields_of(pb.MemberStatus, MemberStatus, {"member": _MEMBER, "address": TOLD, "progress": PROGRESS})
)
_AGENTS: Final = each(fields_of(pb.AgentStatus, AgentStatus, {"name": TOLD, "ranks": NUMBERS}))
STATUS: Final = fields_of(
    pb.GetStatusResponse,
    RunStatus,
    {
        "state": STATE,
        "members": _MEMBERS,
        "agents": _AGENTS,
        **dict.fromkeys(("job", "reason", "checkpoint_problem", "stall"), TOLD),
    },
)

LOOKING: Final = by_ask(
    Way("GetStatus", GetStatus, STATUS, {}),
    Way("Stop", Stop, one(pb.StopResponse, "state", STATE), {"reason": TOLD}),
)
"""Calls of whoever looks on."""
