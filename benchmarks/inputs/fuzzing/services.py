"""Requests to every method of the services, of members and of strangers, and frames that reach a server's shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from benchmarks.inputs.fuzzing.target import Target
from benchmarks.inputs.fuzzing.wire import header, read, sealed_frame, unsealed
from taihu.core.base.errors import DamagedFrameError, FrameError, TaihuError
from taihu.core.coordination.control.ways import UPDATES
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.coordinator.service import CoordinatorServicer
from taihu.core.coordination.membership.agreement import Agreement
from taihu.core.coordination.membership.liveness import Waits
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.roster import Roster
from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.planning import Planning
from taihu.core.job import Job
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.model.world import World
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import Shard
from taihu.core.settings import OptimizerSettings
from taihu.core.traits.optimizers import OPTIMIZERS
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.headers import Address, At, FrameHeader, ValueType, dense_values, frame_of
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Parameters, Question, Rates
from taihu.protos import coordinator_pb2 as pb
from taihu.protos import parameter_server_pb2
from taihu.ps_server.server_shard import ServerShard
from taihu.ps_server.shard_holder import Initialization

__all__ = ["TARGETS"]

_LAYOUT: Final = Layout(
    (LayerSpec("fc", (TensorSpec("weight", (8,)),)), LayerSpec("out", (TensorSpec("weight", (5,)),)))
)
_BRINGER: Final = Sender(7, 0)
_PLAN: Final = Plan(1, 1, (Group(0, 0), Group(1, 1)), _LAYOUT, 8, world=World(1, 3))
_SERVICE: Final = pb.DESCRIPTOR.services_by_name["CoordinatorService"]
_METHODS: Final = tuple(sorted(method.name for method in _SERVICE.methods))
# What it waits for does not come; what ends the run for everybody needs no member.
_NOT_CALLED: Final = ("Stop",)
_LIVES: Final = {
    MemberId(Role.SERVER, 0): 1 << 40,
    MemberId(Role.WORKER, 0): 1 << 41,
    MemberId(Role.WORKER, 1): 1 << 42,
}
_FP64: Final[Mapping[str, Any]] = {"value_type": ValueType.FP64}
_ROLES: Final = {Role.SERVER: pb.ROLE_SERVER, Role.WORKER: pb.ROLE_WORKER}


class Aborted(Exception):  # noqa: N818 - not an error: an answer
    """A call was answered with a status."""


class _Clock:
    def now(self) -> float:
        return 5.0

    def sleep(self, seconds: float) -> None:
        """Nobody waits here."""


class _Context:
    """Of a call whose time is over: nothing is waited for."""

    def time_remaining(self) -> float:
        return 0.0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def add_callback(self, _: Callable[[], None]) -> bool:
        return True

    def set_trailing_metadata(self, _: object) -> None:
        """Nobody reads it."""

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        assert code is not grpc.StatusCode.INTERNAL, details  # noqa: S101
        assert details.isprintable(), details  # noqa: S101
        raise Aborted(details)


def _coordinator(job: Job) -> tuple[Membership, CoordinatorServicer]:
    """A run with all its members."""
    roster = Roster(job.name, servers=1, workers=2)
    membership = Membership(roster, Agreement(str(roster.host), job.digest, {}), Waits(5.0, 5.0))
    for member, life in _LIVES.items():
        layout = _LAYOUT if member.role is Role.WORKER else None
        membership.admission.join(member, life, job=job.name, digest=job.digest, now=5.0, layout=layout)
    coordinator = Coordinator(membership, lambda layout: Planning(job, layout, one_host=True), _Clock())
    return membership, CoordinatorServicer(Desk(coordinator))


def _state(membership: Membership) -> object:
    """All that others could change."""
    records = [
        (each.incarnation, each.address, each.finished, each.progress, each.parameters_sha256)
        for each in membership.roster.members.values()
    ]
    return (
        membership.outcome.state,
        membership.outcome.reason,
        records,
        membership.outcome.stop.reason,
        membership.outcome.stop.last_step,
    )


def _request_class(name: str) -> type[Message]:
    return GetMessageClass(_SERVICE.methods_by_name[name].input_type)


def _request(data: bytes) -> tuple[str, Any]:
    """The method and the request of an input: its first byte says which."""
    name = _METHODS[data[0] % len(_METHODS)] if data else _METHODS[0]
    kind = _request_class(name)
    try:
        return name, kind.FromString(data[1:])
    except DecodeError:
        raise Aborted("no message") from None


def _member_calls(_: Path) -> Callable[[bytes], object]:
    job = Job.model_validate({"cluster": {"servers": 1, "workers": 2}})

    def call(data: bytes) -> object:
        name, request = _request(data)
        _, servicer = _coordinator(job)
        return servicer.answer(name, request, cast("grpc.ServicerContext", _Context()))

    return call


def _strangers_calls(_: Path) -> Callable[[bytes], object]:
    """Whatever somebody asks who knows no life of a member, nothing is another one afterwards."""
    job = Job.model_validate({"cluster": {"servers": 1, "workers": 2}})
    membership, servicer = _coordinator(job)
    before = _state(membership)

    def call(data: bytes) -> object:
        name, request = _request(data)
        if name in _NOT_CALLED:
            return None
        if "member" in request.DESCRIPTOR.fields_by_name and request.member.incarnation in _LIVES.values():
            request.member.incarnation = 7
        try:
            return servicer.answer(name, request, cast("grpc.ServicerContext", _Context()))
        finally:
            assert _state(membership) == before, f"{name} of a stranger has changed the run"  # noqa: S101

    return call


def _calls() -> list[bytes]:
    """A request of a member to each method."""
    seeds = []
    for number, name in enumerate(_METHODS):
        request = _request_class(name)()
        for field in request.DESCRIPTOR.fields:
            if field.name == "job":
                setattr(request, field.name, "taihu")
            elif field.name in ("member", "caller"):
                member = pb.Member(role=pb.ROLE_WORKER, rank=1, incarnation=1 << 42)
                getattr(request, field.name).CopyFrom(member)
            elif field.name == "step":
                setattr(request, field.name, 8)
        seeds.append(bytes((number,)) + request.SerializeToString())
    return seeds


def _shard(plan: Plan = _PLAN) -> ServerShard:
    job = Job.model_validate({"name": "job", "cluster": {"servers": 1, "workers": 3}})
    shard = ServerShard(
        job,
        Shard(_LAYOUT, 1, 0),
        plan,
        np.zeros(13, dtype=np.float32),
        incarnation=1,
        get_plan=lambda: plan,
        clock=_Clock(),
    )
    for rank in range(3):
        shard.admit(rank, 7)
    return shard


def _pushed(_: Path) -> Callable[[bytes], object]:
    """Frames to a shard; one that is refused changes no parameter."""

    def call(data: bytes) -> object:
        frame, shard = sealed_frame(data), _shard()
        if isinstance(frame.header.kind, Question):
            return shard.ask(frame.header)
        if not isinstance(frame.header.kind, Gradients):
            raise FrameError("not for a shard")
        answer = shard.push(frame)
        # Alone it completes nothing: two other workers push, too.
        assert not shard.state().shared.arrays["parameters"].any()  # noqa: S101
        return answer

    return call


def _rates(_: Path) -> Callable[[bytes], object]:
    """Learning rates for a shard that updates by a script's optimizer; those that are refused are not kept."""
    plan = replace(_PLAN, updates=UpdateRules((OptimizerSettings(),), (0.0, 0.1), (0, 1), (0, 0)))

    def call(data: bytes) -> object:
        frame, shard = sealed_frame(data), _shard(plan)
        try:
            shard.take_rates(frame)
            return frame
        except TaihuError:
            # The step's right ones are still taken of everybody.
            for rank in range(3):
                head = FrameHeader(Sender(7, rank), Address(At(1, 1), 0, 0, 2), Rates(), **_FP64)
                shard.take_rates(frame_of(head, np.array([0.1, 0.2]).view(np.uint8)))
            raise

    return call


def _update_rules(_: Path) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        try:
            message = pb.UpdateRules.FromString(data)
        except DecodeError as error:
            raise DamagedFrameError(str(error)) from None
        return UPDATES.of(message)

    return call


def _initialized(_: Path) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        try:
            request = parameter_server_pb2.InitializeRequest.FromString(data)
        except DecodeError as error:
            raise DamagedFrameError(str(error)) from None
        initial = Initialization(_PLAN, Shard(_LAYOUT, 1, 0), shared=False)
        frame = read(request.frame, _BRINGER)
        initial.write(frame.header, dense_values(frame))
        return initial

    return call


def _rules() -> bytes:
    rules = UpdateRules((OptimizerSettings(name=OPTIMIZERS["adam"]),), (0.0, 0.1), (0, 1), (0, 0))
    message: pb.UpdateRules = UPDATES.to(rules)
    return message.SerializeToString()


def _initial() -> bytes:
    request = parameter_server_pb2.InitializeRequest()
    first = Shard(_LAYOUT, 1, 0).state_frames(_PLAN.frame_elements)[0]
    head = FrameHeader(_BRINGER, At(1, 0).range(first), Parameters())
    request.frame = message_of(head, [np.ones(first.count, dtype=np.float32)])
    return request.SerializeToString()


def _frames() -> Iterator[bytes]:
    ones = np.ones(8, dtype=np.float32)
    yield unsealed(header(Gradients()), ones)
    yield unsealed(header(Question(), Encoding.NONE))
    yield unsealed(header(Gradients(), Encoding.SHARED))


TARGETS: Final = (
    Target("calls_of_members", _member_calls, (Aborted,), _calls()),
    Target("calls_of_strangers", _strangers_calls, (Aborted,), _calls()),
    Target("pushed", _pushed, (TaihuError,), list(_frames())),
    Target("rates", _rates, (TaihuError,), [unsealed(header(Rates(), elements=2, **_FP64), np.array([0.1, 0.2]))]),
    Target("update_rules", _update_rules, (FrameError,), [_rules()]),
    Target("initial", _initialized, (TaihuError,), [_initial()]),
)
