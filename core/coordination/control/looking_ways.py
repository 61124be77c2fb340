"""Calls of whoever looks on as gRPC carries them, and the words of a run that all calls share.

They need no arrays, as commands start with them: `taihu.core.coordination.control.ways` has the calls of members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any, Final, Generic, TypeVar, cast, get_args

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from taihu.core.base.errors import FrameError
from taihu.core.coordination.control.control import Ask
from taihu.core.coordination.control.kinds import Kind, Kinds, fields_of, kind_of
from taihu.core.coordination.control.looking import GetStatus, Stop
from taihu.core.coordination.membership.members import Life, MemberId, Role, RunState
from taihu.protos import coordinator_pb2 as pb

A = TypeVar("A")

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["CoordinatorService"]
COORDINATOR_SERVICE: Final = _SERVICE.full_name


@dataclass(frozen=True)
class Way(Generic[A]):
    """A call as gRPC carries it.

    Attributes:
        name: of the method, as that of the class of what is asked.
        request: the class of its message.
        response: the class of that which answers it.
        asked: what is asked and its message.
        answered: the answer and its message.
    """

    name: str
    request: type[Message]
    response: type[Message]
    asked: Kind[Ask[A]]
    answered: Kind[A]

    @property
    def path(self) -> str:
        """The method as a channel names it."""
        return f"/{COORDINATOR_SERVICE}/{self.name}"


Ways = Mapping[type[Ask[Any]], Way[Any]]
"""Calls by the class of what is asked."""


def ways_of(asks: Iterable[type[Ask[Any]]], kinds: Kinds) -> Ways:
    """The ways of asks whose values are of `kinds`."""
    return MappingProxyType({ask: _way_of(ask, kinds) for ask in asks})


def _way_of(ask: type[Ask[Any]], kinds: Kinds) -> Way[Any]:
    method = _SERVICE.methods_by_name[ask.__name__]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    (answer,) = get_args(cast("Any", ask).__orig_bases__[0])
    return Way(method.name, request, response, fields_of(request, ask, kinds), _answered(response, answer, kinds))


def _answered(response: type[Message], answer: Any, kinds: Kinds) -> Kind[Any]:
    """An answer as a response: none, all of its fields, or the one that it has."""
    if answer is NoneType:
        return Kind(lambda _: response(), lambda _: None)
    if len(places := response.DESCRIPTOR.fields) > 1:
        return kinds.get(answer) or fields_of(response, answer, kinds)
    name, kind = places[0].name, kind_of(answer, places[0], kinds)
    return Kind(lambda value: response(**{name: kind.to(value)}), lambda found: kind.of(getattr(found, name)))


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
LOOKING_KINDS: Final[Kinds] = MappingProxyType(
    {
        Life: LIFE,
        RunState: STATE,
        # Without its life: who knows that may speak as the member.
        MemberId: Kind[MemberId](lambda member: _life_to(Life(member, 0)), lambda found: _life_of(found).member),
    }
)
"""Kinds of the words of a run."""
LOOKING: Final = ways_of((GetStatus, Stop), LOOKING_KINDS)
"""Calls of whoever looks on."""
