"""A doctor that listens: what it answers, and what it does not do for strangers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from support.frames import read

from taihu.core.base.errors import ConfigError, FrameError, StaleError
from taihu.core.security.security import Security
from taihu.core.security.token import Token
from taihu.core.wire.base.address import free_port
from taihu.core.wire.base.clock import WallClock
from taihu.core.wire.base.status import error_from_rpc
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.headers import Address, At, FrameHeader
from taihu.core.wire.frames.identity import WorkerIdentity, identity_to_metadata
from taihu.core.wire.frames.kinds import Encoding, Gradients, Parameters, Question
from taihu.core.wire.serving.channel import open_channel
from taihu.core.wire.serving.server import RpcServer
from taihu.doctor.collecting import interface_towards, machine_facts
from taihu.doctor.facts import Port
from taihu.doctor.link import DOCTOR_SERVICE, MOST_BYTES
from taihu.doctor.messages import facts_from_message, facts_to_message
from taihu.doctor.remote import RemoteDoctor, look_at_port
from taihu.doctor.service import ListeningDoctor
from taihu.protos import connection_pb2
from taihu.protos import doctor_pb2 as pb
from taihu.protos.doctor_pb2_grpc import DoctorServiceStub

IDENTITY = WorkerIdentity("doctor", 0, 7)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    clock = WallClock()
    clock.jump(5.0)
    with ListeningDoctor("127.0.0.1:0", clock=clock) as listening:
        yield f"127.0.0.1:{listening.port}"


def exchange(address: str, frames: list[bytes]) -> list[bytes]:
    """The answers of the doctor to these; raises the error that it ends with."""
    with open_channel(address) as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{DOCTOR_SERVICE}/Exchange")
        try:
            return list(call(iter(frames), metadata=identity_to_metadata(IDENTITY), timeout=120.0))
        except grpc.RpcError as error:
            raise error_from_rpc(error, "the doctor") from None


def question(number: int, elements: int) -> bytes:
    header = FrameHeader(IDENTITY.sender, Address(At(0, number), 0, 0, elements), Question(), Encoding.NONE)
    return message_of(header, (), number - 1)


def test_facts_travel_whole(address: str) -> None:
    facts = machine_facts(["localhost"])
    assert facts_from_message(facts_to_message(facts)) == facts
    with RemoteDoctor(address) as doctor:
        told, back = doctor.facts(["localhost"])
    assert (told.host, told.versions, told.features, told.names) == (
        facts.host,
        facts.versions,
        facts.features,
        facts.names,
    )
    assert back == interface_towards("127.0.0.1")
    assert (back.name, back.address) == ("lo", "127.0.0.1")
    assert back.mtu > 0


def test_the_clock_is_known_within_its_error(address: str) -> None:
    with RemoteDoctor(address) as doctor:
        clock = doctor.clock()
    assert abs(clock.ahead_s - 5.0) <= clock.error_s + 1e-3


def test_a_link_is_measured_by_both_carriers(address: str) -> None:
    with RemoteDoctor(address) as doctor:
        link = doctor.measure("here", "there")
    assert (link.near, link.far, link.failure, link.small_passed) == ("here", "there", "", True)
    assert min(link.alpha_s, link.up, link.down, link.direct) > 0
    assert link.near_interface == link.far_interface


def test_questions_are_answered_by_values_and_gradients_by_a_word(address: str) -> None:
    values = np.arange(5, dtype=np.float32)
    header = FrameHeader(IDENTITY.sender, Address(At(0, 2), 0, 0, 5), Gradients())
    asked, pushed = (read(each) for each in exchange(address, [question(1, 3), message_of(header, [values], 1)]))
    assert isinstance(asked.header.kind, Parameters)
    assert asked.values.shape == (3,)
    assert pushed.header.encoding is Encoding.NONE


def test_no_more_than_a_measurement_needs_is_answered(address: str) -> None:
    largest = (4 << 20) // 4
    with pytest.raises(FrameError, match="answers at most"):
        exchange(address, [question(1, largest + 1)])
    frames = [question(number, largest) for number in range(1, MOST_BYTES // (4 << 20) + 2)]
    with pytest.raises(FrameError, match="bytes in one measurement"):
        exchange(address, frames)
    # It is ready for the next one.
    assert len(exchange(address, [question(1, 1)])) == 1


def test_one_measurement_at_a_time() -> None:
    over = threading.Event()

    def held() -> Iterator[bytes]:
        yield question(1, 1)
        over.wait(120.0)

    with ListeningDoctor("127.0.0.1:0") as listening:
        address = f"127.0.0.1:{listening.port}"
        with open_channel(address) as channel:
            call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{DOCTOR_SERVICE}/Exchange")
            under_way = call(held(), metadata=identity_to_metadata(IDENTITY), timeout=120.0)
            next(iter(under_way))
            with pytest.raises(StaleError, match="somebody else"):
                exchange(address, [question(1, 1)])
            over.set()
            assert list(under_way) == []
        assert len(exchange(address, [question(1, 1)])) == 1


@pytest.mark.parametrize(
    "other",
    [
        "127.0.0.1:7070",
        "[::1]:22",
        "[::ffff:127.0.0.1]:22",
        "169.254.169.254:80",
        "localhost:7070",
        "0.0.0.0:7070",
        "224.0.0.1:1",
    ],
)
def test_it_measures_no_service_of_its_own_machine(address: str, other: str) -> None:
    with RemoteDoctor(address) as doctor, pytest.raises(ConfigError, match=r"other machines alone|one in numbers"):
        doctor.measure_to(other)


def test_it_resolves_few_names(address: str) -> None:
    with open_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        DoctorServiceStub(channel).GetFacts(pb.GetFactsRequest(names=["a"] * 5), timeout=120.0)
    assert isinstance(error_from_rpc(refused.value, "the doctor"), ConfigError)


def test_no_connection_without_an_exchange(address: str) -> None:
    with open_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        DoctorServiceStub(channel).OpenConnection(connection_pb2.OpenConnectionRequest(job="x"), timeout=120.0)
    assert isinstance(error_from_rpc(refused.value, "the doctor"), StaleError)


@pytest.mark.parametrize("token", [None, Token("of-this-run-0123456789abcdef")])
def test_ports(address: str, token: Token | None) -> None:
    assert look_at_port(address, "here").port is Port.OPEN
    assert look_at_port(f"127.0.0.1:{free_port('127.0.0.1')}", "here").port is Port.REFUSED
    daemon = RpcServer.create(threads=2, security=Security(token=token))
    port = daemon.listen("127.0.0.1:0")
    daemon.start(())
    try:
        assert look_at_port(f"127.0.0.1:{port}", "here").port is Port.RUNNING
    finally:
        daemon.stop(0.1)


def test_a_port_that_speaks_no_grpc() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert look_at_port(f"127.0.0.1:{other.getsockname()[1]}", "here", 1.0).port is Port.OTHER
