"""Another machine, asked: whether its port is open, what it is like, its clock, and its links."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from taihu.core.base.errors import PeerUnreachableError
from taihu.core.system.sockets import create_connection, gaierror
from taihu.core.trace.clock_offset import ClockOffset
from taihu.core.wire.base.address import split_address
from taihu.core.wire.base.clock import WallClock
from taihu.core.wire.base.status import error_from_rpc
from taihu.core.wire.serving.channel import open_channel
from taihu.doctor.facts import ClockFacts, Interface, LinkFacts, MachineFacts, Port, PortFacts
from taihu.doctor.link import measure_link
from taihu.doctor.messages import facts_from_message, interface_from_message, link_from_message
from taihu.protos import doctor_pb2 as pb
from taihu.protos.doctor_pb2_grpc import DoctorServiceStub

_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 5.0
_LINK_S: Final = 60.0
_CLOCK_SAMPLES: Final = 7
_NO_ROUTE: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL)


def look_at_port(address: str, seen_from: str, wait_s: float = _CONNECT_S) -> PortFacts:
    """Connect to `address`, and ask what is open who it is."""
    host, number = split_address(address)
    try:
        create_connection((host, number), timeout=wait_s).close()
    except (gaierror, UnicodeError):
        return PortFacts(address, Port.UNKNOWN, seen_from)
    except TimeoutError:
        return PortFacts(address, Port.DROPPED, seen_from, wait_s)
    except ConnectionRefusedError:
        return PortFacts(address, Port.REFUSED, seen_from)
    except OSError as error:
        port = Port.UNREACHABLE if error.errno in _NO_ROUTE else Port.OTHER
        return PortFacts(address, port, seen_from)
    return PortFacts(address, _who_listens(address, wait_s), seen_from)


def _who_listens(address: str, wait_s: float) -> Port:
    with open_channel(address) as channel:
        try:
            DoctorServiceStub(channel).GetTime(pb.GetTimeRequest(), timeout=wait_s)
        except grpc.RpcError as error:
            if not isinstance(error, grpc.Call) or error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                return Port.OTHER
        else:
            return Port.OPEN
        try:
            health = health_pb2_grpc.HealthStub(channel)
            health.Check(health_pb2.HealthCheckRequest(), timeout=wait_s)
        except grpc.RpcError:
            return Port.OTHER
        return Port.RUNNING


class RemoteDoctor:
    """The doctor that listens at `address`; a context manager. What it does not answer is a TaihuError."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = open_channel(address)
        self._stub = DoctorServiceStub(self._channel)
        self._peer = f"the doctor at {address}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def facts(self, names: Sequence[str] = ()) -> tuple[MachineFacts, Interface]:
        """Its machine, where `names` are resolved too, and the interface by which it reaches this one."""
        try:
            answer = self._stub.GetFacts(pb.GetFactsRequest(names=names), timeout=_ANSWER_S)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._peer) from None
        return facts_from_message(answer.facts), interface_from_message(answer.back)

    def clock(self, wall: WallClock | None = None) -> ClockFacts:
        """The lead of its time of day over `wall`, this machine's, by the shortest of some round trips."""
        wall, lead = wall or WallClock(), ClockOffset()
        for _ in range(_CLOCK_SAMPLES):
            sent_s = wall.now()
            try:
                told = self._stub.GetTime(pb.GetTimeRequest(), timeout=_ANSWER_S)
            except grpc.RpcError as error:
                raise error_from_rpc(error, self._peer) from None
            received_s = wall.now()
            if received_s >= sent_s:  # this machine's time of day was not set back meanwhile
                lead.add(sent_s, told.seconds, received_s)
        if lead.error_s == float("inf"):
            raise PeerUnreachableError(f"{self._peer}: this machine's clock is being set; try again")
        return ClockFacts(self._address, lead.offset_s, lead.error_s)

    def measure(self, near: str, far: str) -> LinkFacts:
        """The link from here to it."""
        _, back = self.facts()
        return measure_link(near, far, self._address, back)

    def measure_to(self, other: str) -> LinkFacts:
        """The link from it to the doctor at the address `other`, which has a number in place of a name."""
        try:
            answer = self._stub.MeasureLink(pb.MeasureLinkRequest(address=other), timeout=_LINK_S)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._peer) from None
        return link_from_message(answer.link, self._address, other)
