"""Coordinators of a job in this process, and ways to them: over gRPC on a free port, or in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from support.daemons import free_port
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.control.control import Answering, Control
from taihu.core.coordination.control.memory import MemoryControl, MemoryPlace
from taihu.core.coordination.control.remote import RemoteControl
from taihu.core.coordination.control.ways import WAYS
from taihu.core.coordination.coordinator.checkpointing import Checkpointing
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.coordinator.service import COORDINATOR_SERVICE, CoordinatorServicer
from taihu.core.coordination.membership.members import Life, MemberId, Role
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.plans.planning import Planning
from taihu.core.job import Job
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.serving.channel import open_channel
from taihu.core.wire.serving.server import RpcServer

__all__ = ["KINDS", "Place", "client_of", "coordinator_of", "joined_desk", "life_of", "place"]


class Place(Protocol):
    """A place where a coordinator answers, or nobody does."""

    @abstractmethod
    def opens(self, desk: Answering) -> None:
        """`desk` answers from now on."""

    @abstractmethod
    def closes(self) -> None:
        """Nobody answers."""

    @abstractmethod
    def control(self, caller: str) -> Control:
        """A way there."""


class _Memory:
    def __init__(self) -> None:
        self._place = MemoryPlace()

    def opens(self, desk: Answering) -> None:
        self._place.answering = desk

    def closes(self) -> None:
        self._place.answering = None

    def control(self, caller: str) -> Control:
        return MemoryControl(self._place, caller=caller)


class _Remote:
    def __init__(self) -> None:
        self._rpc: RpcServer | None = None
        self._address = f"127.0.0.1:{free_port()}"

    def opens(self, desk: Answering) -> None:
        self._rpc = RpcServer.create(threads=16)
        self._rpc.listen(self._address)
        CoordinatorServicer(desk).register(self._rpc.grpc_server)
        self._rpc.start((COORDINATOR_SERVICE,))

    def closes(self) -> None:
        if self._rpc is not None:
            self._rpc.stop(0.0)
            self._rpc = None

    def control(self, caller: str) -> Control:
        return RemoteControl(self._address, partial(open_channel, self._address), WAYS, caller=caller)


KINDS: Final[dict[str, Callable[[], Place]]] = {"memory": _Memory, "grpc": _Remote}


@contextmanager
def place(kind: str) -> Iterator[Place]:
    """A place of that kind, where nobody answers yet."""
    made = KINDS[kind]()
    try:
        yield made
    finally:
        made.closes()


def coordinator_of(job: Job, terms: Terms | None = None, generation: int = 0) -> Coordinator:
    """The coordinator of a job, whose plans are real; nobody has joined."""
    membership = Membership.of(job, terms or Terms(), generation)
    clock = SystemClock()
    checkpointing = Checkpointing.of(job, clock)
    return Coordinator(membership, lambda layout: Planning(job, layout, one_host=True), clock, checkpointing)


def life_of(member: MemberId) -> Life:
    """The life that a member has in tests."""
    return Life(member, 1000 + member.rank)


def joined_desk(job: Job) -> Desk:
    """The desk of a coordinator, whose servers have joined."""
    coordinator = coordinator_of(job)
    with coordinator.changing() as (membership, now):
        for index in range(job.servers):
            server = life_of(MemberId(Role.SERVER, index))
            membership.admission.join(
                server.member, server.incarnation, job=job.name, digest=job.digest, now=now, address="here:1"
            )
    return Desk(coordinator)


def client_of(desk: Answering, job: Job, member: MemberId, incarnation: int | None = None) -> CoordinatorClient:
    """A member's client of a coordinator in memory."""
    control = MemoryControl(MemoryPlace(desk), caller=str(member))
    return CoordinatorClient(control, job, member, incarnation or life_of(member).incarnation)
