"""Services of every server of taihu: health, reflection on demand, and a port of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from prometheus_client import CollectorRegistry
from support.loopback import Loopback

from taihu.core.base.errors import ConfigError
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES
from taihu.core.wire.serving.channel import open_channel, shared_options
from taihu.core.wire.serving.health import Health
from taihu.core.wire.serving.metrics import MetricsPage
from taihu.core.wire.serving.server import RpcServer

SERVICE = "taihu.v1.CoordinatorService"
HEALTH = "grpc.health.v1.Health"


@contextmanager
def serving(*, with_reflection: bool = False) -> Iterator[tuple[RpcServer, grpc.Channel]]:
    server = RpcServer.create(threads=4)
    port = server.listen("127.0.0.1:0")
    server.start((SERVICE,), with_reflection=with_reflection)
    with open_channel(f"127.0.0.1:{port}") as channel:
        try:
            yield server, channel
        finally:
            server.stop(0.0)


def check(channel: grpc.Channel, service: str) -> int:
    serialize, parse = HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    answer = channel.unary_unary(f"/{HEALTH}/Check", serialize, parse)(
        HealthCheckRequest(service=service), timeout=120
    )
    return answer.status


@pytest.mark.parametrize("service", ["", SERVICE])
def test_the_server_and_its_services_report_that_they_serve(service: str) -> None:
    with serving() as (_, channel):
        assert check(channel, service) == HealthCheckResponse.SERVING


def test_a_service_that_is_not_there_is_not_found() -> None:
    with serving() as (_, channel), pytest.raises(grpc.RpcError) as caught:
        check(channel, "taihu.v1.NoService")
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("service", ["", SERVICE])
def test_who_watches_is_told_that_the_server_ends(service: str) -> None:
    serialize, parse = HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    with serving() as (server, channel):
        method = channel.unary_stream(f"/{HEALTH}/Watch", serialize, parse)
        watch = method(HealthCheckRequest(service=service), timeout=120)
        assert next(watch).status == HealthCheckResponse.SERVING
        server.stop(0.2)
        assert next(watch).status == HealthCheckResponse.NOT_SERVING


def test_a_stopped_server_is_gone_and_its_port_free() -> None:
    server = RpcServer.create(threads=1)
    port = server.listen("127.0.0.1:0")
    server.start((SERVICE,))
    server.stop(0.0)
    with open_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
        check(channel, SERVICE)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    again = RpcServer.create(threads=1)
    assert again.listen(f"127.0.0.1:{port}") == port
    again.stop(0.0)


def test_reflection_lists_the_services_only_on_demand() -> None:
    with serving(with_reflection=True) as (_, channel):
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert {SERVICE, HEALTH} < set(services)
    with serving() as (_, channel), pytest.raises(grpc.RpcError) as caught:
        list(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_port_in_use_is_refused_with_the_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"cannot listen on {address}.*in use.*--bind") as caught:
            RpcServer.create(threads=1).listen(address)
    assert len(str(caught.value).splitlines()) == 1


def test_two_servers_do_not_share_a_port() -> None:
    with serving():
        first = RpcServer.create(threads=1)
        port = first.listen("127.0.0.1:0")
        first.start(())
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            RpcServer.create(threads=1).listen(f"127.0.0.1:{port}")
        first.stop(0.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::]", "localhost"])
def test_a_free_port_is_none_that_connections_get(host: str) -> None:
    """A server that is started again listens where it did: between its lives no connection has its port."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    servers = [RpcServer.create(threads=1) for _ in range(8)]
    ports = {server.listen(f"{host}:0") for server in servers}
    for server in servers:
        server.stop(0.0)
    assert len(ports) == len(servers)
    assert max(ports) < given


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0: .* not this machine's"):
        RpcServer.create(threads=1).listen("192.0.2.1:0")


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{address}'.*host:port with a port from 0 to 65535"):
        RpcServer.create(threads=1).listen(address)


def test_a_frame_of_the_largest_size_passes_both_ends() -> None:
    message = bytes(MAX_PAYLOAD_BYTES + 1000)
    with Loopback() as loopback:
        assert loopback.call(30, message) == message


def test_a_stream_on_which_nothing_comes_is_not_cut_however_often_its_client_pings() -> None:
    """Workers may test a model for minutes; the third ping was one too many once."""
    serialize, parse = HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    # gRPC pings once a second at most.
    often = {**dict(shared_options(Patience())), "grpc.keepalive_time_ms": 1000}
    server = RpcServer.create(threads=4)
    port = server.listen("127.0.0.1:0")
    server.start((SERVICE,))
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=tuple(often.items())) as channel:
        changes = channel.unary_stream(f"/{HEALTH}/Watch", serialize, parse)(HealthCheckRequest(), timeout=5)
        assert next(changes).status == HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError):
            next(changes)
        assert changes.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server.stop(0.0)


def test_the_page_tells_what_the_health_service_does() -> None:
    """Over HTTP, for whoever asks without certificates, in the same states one after the other."""
    health = Health()
    with closing(MetricsPage(CollectorRegistry(), 0, "127.0.0.1", health=health)) as page:
        assert told(page) == (503, 503)
        server = RpcServer.create(threads=4, own_health=health)
        port = server.listen("127.0.0.1:0")
        server.start((SERVICE,))
        with open_channel(f"127.0.0.1:{port}") as channel:
            for retired in (False, True):
                if retired:
                    server.retire()
                over_grpc = tuple(check(channel, name) == HealthCheckResponse.SERVING for name in ("", SERVICE))
                assert (
                    told(page) == tuple(200 if well else 503 for well in over_grpc) == (200, 503 if retired else 200)
                )
        server.stop(0.0)
        assert told(page) == (503, 503)
        again = RpcServer.create(threads=4, own_health=health)
        again.listen("127.0.0.1:0")
        assert told(page) == (503, 503)
        again.start((SERVICE,))
        assert told(page) == (200, 200)
        again.stop(0.0)


def told(page: MetricsPage) -> tuple[int, int]:
    """The statuses of both paths; metrics are at all others."""
    connection = HTTPConnection("127.0.0.1", page.port, timeout=120)
    statuses = []
    for path in ("/healthz", "/readyz", "/metrics"):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    alive, ready, metrics = statuses
    assert metrics == 200
    return alive, ready
