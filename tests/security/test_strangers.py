"""Attempts against a job that runs: each is refused, told and counted, and no bit of the job is another one for it.

`python -m benchmarks refusals` makes a table of them.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs
from support.certificates import MEMBERS, TestAuthority
from support.cluster import Cluster, Member, Values, layout_of, make_job
from support.daemons import wait_for

from taihu.core.base.errors import ConfigError, PeerUnreachableError, RefusedError
from taihu.core.coordination.status import fetch_status
from taihu.core.security.certificates import Validity
from taihu.core.security.security import Security
from taihu.core.security.token import Token
from taihu.core.wire.frames.identity import WorkerIdentity, identity_to_metadata
from taihu.core.wire.serving.channel import open_channel
from taihu.core.wire.serving.server import RpcServer
from taihu.protos import connection_pb2
from taihu.protos import coordinator_pb2 as pb
from taihu.protos import parameter_server_pb2 as ps
from taihu.ps_server.daemon import ServerDaemon, ServerOptions

LAYOUT = layout_of(8, 300)
TOKEN = Token("of-this-run-0123456789abcdef")
EARLIER = Token("of-an-earlier-run-0123456789")
COORDINATOR = "/taihu.v1.CoordinatorService"
SERVER = "/taihu.v1.ParameterServerService"
AS_0 = pb.Member(role=pb.ROLE_WORKER, rank=0, incarnation=1000)
AS_SERVER = pb.Member(role=pb.ROLE_SERVER, rank=0, incarnation=1)
STATUS = (f"{COORDINATOR}/GetStatus", pb.GetStatusRequest())

Handshake = Literal["handshake"]


@dataclass(frozen=True)
class Attempt:
    """A call that shall not be let in: `reason` is the counter's, or that TLS has refused it."""

    name: str
    shown: Security
    call: tuple[str, Any]
    status: grpc.StatusCode
    reason: str
    metadata: tuple[tuple[str, str], ...] = ()


def attempts(ours: TestAuthority, others: TestAuthority) -> Iterator[Attempt]:
    """All of them, by somebody who knows the token where it is not said otherwise."""
    broken, denied = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED
    unknown = grpc.StatusCode.UNAUTHENTICATED
    ca = ours.folder / "ca.pem"

    def foreign(place: str) -> Security:
        return others.security(place, TOKEN, ca=ca)

    worker, observer = ours.security("worker/1", TOKEN), ours.security("observer/0", TOKEN)
    stream = identity_to_metadata(WorkerIdentity("taihu", 0, 1000))
    none = Security("taihu", type(ours.files("worker/1"))(ca), token=TOKEN)
    yield Attempt("no certificate", none, STATUS, broken, "handshake")
    yield Attempt("plain text to a TLS port", Security(token=TOKEN), STATUS, broken, "handshake")
    yield Attempt("certificate of a foreign authority", foreign("worker/1"), STATUS, broken, "handshake")
    now = datetime.now(UTC)
    for name, start, end in (("expired", -2, -1), ("not valid yet", 1, 2)):
        place = f"worker/{7 + end}"
        ours.sign(place, validity=Validity(now + timedelta(days=start), now + timedelta(days=end)))
        yield Attempt(f"certificate {name}", ours.security(place, TOKEN), STATUS, broken, "handshake")
    ours.sign("worker/4", job="other")
    yield Attempt("another job's certificate", ours.security("worker/4", TOKEN), STATUS, denied, "job")
    yield Attempt("no token", ours.security("observer/0"), STATUS, unknown, "no_token")
    yield Attempt("a wrong token", ours.security("observer/0", Token("x" * 32)), STATUS, unknown, "wrong_token")
    yield Attempt("the token of an earlier run", ours.security("worker/1", EARLIER), STATUS, unknown, "wrong_token")
    heartbeat = (f"{COORDINATOR}/Heartbeat", pb.HeartbeatRequest(job="taihu", member=AS_0, wants_stop="no reason"))
    yield Attempt("worker 1 speaks as worker 0", worker, heartbeat, denied, "rank")
    finish = (f"{COORDINATOR}/Finish", pb.FinishRequest(job="taihu", member=AS_SERVER, failure="no reason"))
    yield Attempt("worker 1 speaks as server 0", worker, finish, denied, "rank")
    yield Attempt("worker 1 pushes as worker 0", worker, (f"{SERVER}/Exchange", b""), denied, "rank", stream)
    yield Attempt("worker 1 pushes without a name", worker, (f"{SERVER}/Exchange", b""), denied, "rank")
    connect = connection_pb2.OpenConnectionRequest(job="taihu", rank=0, incarnation=1000)
    yield Attempt("worker 1 connects as worker 0", worker, (f"{SERVER}/OpenConnection", connect), denied, "rank")
    initialize = (f"{SERVER}/Initialize", ps.InitializeRequest().SerializeToString())
    yield Attempt("worker 1 initializes", worker, initialize, denied, "role")
    fixing = (f"{COORDINATOR}/FixLastStep", pb.FixLastStepRequest(job="taihu", member=AS_0, step=1))
    yield Attempt("worker 1 fixes the last step", worker, fixing, denied, "role")
    stop = (f"{COORDINATOR}/Stop", pb.StopRequest(job="taihu", reason="no reason"))
    yield Attempt("worker 1 stops the run", worker, stop, denied, "role")
    yield Attempt("an observer pushes", observer, (f"{SERVER}/Exchange", b""), denied, "role", stream)
    yield Attempt("an observer stops the run", observer, stop, denied, "role")
    fetch = (f"{SERVER}/Fetch", ps.FetchRequest(job="taihu", rank=0))
    yield Attempt("an observer reads parameters", observer, fetch, denied, "role")
    operator = ours.security("operator/0", TOKEN)
    yield Attempt("an operator fetches parameters", operator, fetch, denied, "role")
    yield Attempt("a method that nobody may call", operator, ("/taihu.v1.Debug/Shell", b""), denied, "method")


def refused(attempt: Attempt, address: str) -> grpc.Call:
    """The status of an attempt, which has to fail."""
    method, request = attempt.call
    message = request if isinstance(request, bytes) else request.SerializeToString()
    with open_channel(address, security=attempt.shown, peer="server-0") as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([message]), metadata=attempt.metadata, timeout=120))
    assert isinstance(caught.value, grpc.Call)
    return caught.value


@contextmanager
def two_workers(**sections: dict[str, object]) -> Iterator[tuple[Cluster, list[Member]]]:
    """A server and two workers, who have exchanged nothing yet."""
    job = make_job(1, 2, exchange={"transport": "grpc"}, **sections)
    with (
        Cluster(job, metrics_port=0) as cluster,
        cluster.member(0, LAYOUT) as first,
        cluster.member(1, LAYOUT) as second,
    ):
        first.exchange.start()
        second.exchange.start()
        yield cluster, [first, second]


def step(members: list[Member], number: int) -> str:
    """Have all take a step; the hash of the parameters."""

    def take(member: Member) -> Values:
        values = np.random.default_rng([number, member.rank]).standard_normal(LAYOUT.elements)
        return member.step(number, values.astype(np.float32))

    with ThreadPoolExecutor(len(members)) as pool:
        ends = list(pool.map(take, members))
    assert ends[0].tobytes() == ends[1].tobytes()
    return hashlib.sha256(ends[0].tobytes()).hexdigest()


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    """The hashes of a run in plain text, without anybody else."""
    with two_workers() as (_, members):
        return [step(members, number) for number in range(1, 5)]


@pytest.fixture
def ours(tmp_path: Path) -> TestAuthority:
    authority = TestAuthority(tmp_path / "ours")
    for place in MEMBERS:
        authority.sign(place)
    return authority


def test_every_attempt_is_refused_and_changes_nothing(
    undisturbed: list[str],
    ours: TestAuthority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setenv("TAIHU_TOKEN", TOKEN.reveal())
    others = TestAuthority(tmp_path / "others")
    others.sign("worker/1")
    with capture_logs() as logs, two_workers(security=dict(ours.settings())) as (cluster, members):
        address = members[0].addresses[0]
        hashes, refused_by_tls = [step(members, 1)], 0
        for attempt in attempts(ours, others):
            told, counted, begun = len(logs), _counted(cluster, attempt), _handshakes(cluster, "tls")
            error = refused(attempt, address)
            assert error.code() is attempt.status, (attempt.name, error.details())
            assert _handshakes(cluster, "tls") > begun
            if attempt.reason == "handshake":
                # gRPC's own library refuses these, before there is a call: who makes none in a while is told of.
                refused_by_tls += 1
            else:
                assert _counted(cluster, attempt) == counted + 1, attempt.name
                (entry,) = [each for each in logs[told:] if each["event"] == "call refused"]
                assert entry["method"] == attempt.call[0]
                assert TOKEN.reveal() not in str(entry)
            record_property(attempt.name, f"{error.code().name} {attempt.reason}")
        hashes += [step(members, number) for number in (2, 3, 4)]
        assert fetch_status(address, 120, ours.security("observer/0", TOKEN)).job == "taihu"
        wait_for(lambda: _handshakes(cluster, "refused") >= refused_by_tls, "handshakes are not told of")
        assert [each["event"] for each in logs].count("a handshake came to nothing") >= refused_by_tls
    assert hashes == undisturbed


def _counted(cluster: Cluster, attempt: Attempt) -> float:
    method = attempt.call[0] if attempt.reason != "method" else "other"
    labels = {"role": "server", "rank": "0", "method": method, "reason": attempt.reason}
    return cluster.servers[0].metrics.registry.get_sample_value("taihu_refused_calls_total", labels) or 0.0


def _handshakes(cluster: Cluster, kind: str) -> float:
    labels = {"role": "server", "rank": "0"}
    return cluster.servers[0].metrics.registry.get_sample_value(f"taihu_{kind}_handshakes_total", labels) or 0.0


def test_nobody_poses_as_a_server(ours: TestAuthority) -> None:
    """Whoever listens in the place of server 0 with a worker's certificate is not believed."""
    security = ours.security("worker/1")
    rpc = RpcServer.create(threads=2, security=security)
    address = f"127.0.0.1:{rpc.listen('127.0.0.1:0')}"
    rpc.start(())
    try:
        for peer in ("server-0", ""):
            with open_channel(address, security=ours.security("worker/0"), peer=peer) as channel:
                ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
                with pytest.raises(grpc.RpcError, match="Hostname Verification"):
                    ask(b"", timeout=120)
        with open_channel(address, security=ours.security("worker/0"), peer="worker-1") as channel:
            ask = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert ask(b"", timeout=120)
    finally:
        rpc.stop(0)


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", f"{COORDINATOR}/Stop", "/taihu.v1.Debug/Shell"])
def test_who_is_answered_or_refused_has_made_a_call(ours: TestAuthority, method: str) -> None:
    rpc = RpcServer.create(threads=2, security=ours.security("server/0"))
    address = f"127.0.0.1:{rpc.listen('127.0.0.1:0')}"
    unserved: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Stop": grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    }
    rpc.grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(COORDINATOR[1:], unserved),))
    rpc.start(())
    try:
        with open_channel(address, security=ours.security("observer/0"), peer="server-0") as channel:
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            with suppress(grpc.RpcError):
                ask(b"", timeout=120)
        assert rpc._security.refusals.handshakes
        assert not rpc._handshakes._waiting
    finally:
        rpc.stop(0)


def test_tls_to_the_page_of_metrics_is_refused(
    undisturbed: list[str], ours: TestAuthority, record_property: Callable[[str, object], None]
) -> None:
    """The one port of a job under TLS that is in plain text."""
    with capture_logs() as logs, two_workers(security=dict(ours.settings())) as (cluster, members):
        hashes = [step(members, 1)]
        port = cluster.servers[0].metrics_port
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _certificate_of(f"127.0.0.1:{port}", ours)
        labels = {"role": "server", "rank": "0", "method": "metrics", "reason": "tls"}
        registry = cluster.servers[0].metrics.registry
        wait_for(lambda: registry.get_sample_value("taihu_refused_calls_total", labels) == 1, "it is not counted")
        wait_for(lambda: any(each.get("reason") == "tls" for each in logs), "it is not told of")
        hashes += [step(members, number) for number in (2, 3, 4)]
    (entry,) = [each for each in logs if each["event"] == "call refused"]
    assert (entry["method"], entry["reason"], entry["caller"]) == ("metrics", "tls", "127.0.0.1")
    assert hashes == undisturbed
    record_property("TLS to the page of metrics", "closed tls")


def test_tls_to_a_port_in_plain_text_is_refused(
    undisturbed: list[str], ours: TestAuthority, record_property: Callable[[str, object], None]
) -> None:
    attempt = Attempt(
        "TLS to a job in plain text", ours.security("observer/0"), STATUS, grpc.StatusCode.UNAVAILABLE, "handshake"
    )
    with two_workers() as (_, members):
        hashes = [step(members, 1)]
        error = refused(attempt, members[0].addresses[0])
        with pytest.raises(PeerUnreachableError, match=r"TLS may have failed: check \[security\]"):
            fetch_status(members[0].addresses[0], 1, attempt.shown)
        hashes += [step(members, number) for number in (2, 3, 4)]
    assert error.code() is attempt.status
    assert hashes == undisturbed
    record_property(attempt.name, f"{error.code().name} {attempt.reason}")


def test_certificates_are_renewed_while_a_run_goes_on(undisturbed: list[str], ours: TestAuthority) -> None:
    with two_workers(security=dict(ours.settings())) as (_, members):
        address = members[0].addresses[0]
        hashes = [step(members, 1), step(members, 2)]
        before = _certificate_of(address, ours)
        for place in MEMBERS:
            ours.sign(place)
        # A half of a pair that is being written: the former certificate stays in use.
        renewed = ours.files("server/0")
        assert renewed.key is not None
        own_key = renewed.key.read_bytes()
        renewed.key.write_bytes((ours.folder / "worker-0-key.pem").read_bytes())
        with capture_logs() as logs:
            assert _certificate_of(address, ours) == before
        assert [each["event"] for each in logs] == ["the former certificate stays in use"]
        renewed.key.write_bytes(own_key)
        after = _certificate_of(address, ours)
        assert after != before
        assert fetch_status(address, 120, ours.security("observer/0")).job == "taihu"
        hashes += [step(members, 3), step(members, 4)]
    assert hashes == undisturbed


def _certificate_of(address: str, ours: TestAuthority) -> bytes:
    context = ssl.create_default_context(cafile=ours.folder / "ca.pem")
    files = ours.files("observer/0")
    assert files.certificate is not None
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=120) as connection,
        context.wrap_socket(connection, server_hostname="server-0.taihu.taihu") as under_tls,
    ):
        certificate = under_tls.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


def test_a_token_alone_is_for_loopback() -> None:
    security = Security("taihu", token=TOKEN)
    with pytest.raises(ConfigError, match="plain text"):
        RpcServer.create(threads=1, security=security).listen("0.0.0.0:0")
    with pytest.raises(ConfigError, match="plain text"):
        open_channel("192.0.2.1:7070", security=security)


def test_strangers_are_refused_before_they_have_said_anything() -> None:
    """They take no place among those who mean to say something."""
    over = threading.Event()
    security = Security("taihu", token=TOKEN)
    rpc = RpcServer.create(threads=2, security=security)
    address = f"127.0.0.1:{rpc.listen('127.0.0.1:0')}"
    echo: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "GetStatus": grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    }
    rpc.grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(COORDINATOR[1:], echo),))
    rpc.start(())

    def silent() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    with open_channel(address) as stranger, open_channel(address, security=security) as member:
        try:
            for method in ("GetStatus", "Nothing"):
                mute: grpc.StreamUnaryMultiCallable[bytes, bytes] = stranger.stream_unary(f"{COORDINATOR}/{method}")
                with pytest.raises(grpc.RpcError) as caught:
                    mute(silent(), timeout=120)
                assert isinstance(caught.value, grpc.Call)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = member.unary_unary(f"{COORDINATOR}/GetStatus")
            assert ask(b"hello", timeout=120) == b"hello"
        finally:
            over.set()
            rpc.stop(0)
    assert security.refusals.calls == {
        (f"{COORDINATOR}/GetStatus", "no_token"): 1,
        ("other", "no_token"): 1,
    }


def test_a_run_with_a_token_is_closed_to_who_has_another_one(
    undisturbed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAIHU_TOKEN", TOKEN.reveal())
    with two_workers() as (_, members):
        address = members[0].addresses[0]
        hashes = [step(members, 1)]
        for shown in (None, Security(token=EARLIER)):
            with pytest.raises(RefusedError):
                fetch_status(address, 120, shown)
        assert fetch_status(address, 120, Security(token=TOKEN)).job == "taihu"
        hashes += [step(members, number) for number in (2, 3, 4)]
    assert hashes == undisturbed


def test_what_is_required_and_missing_is_said() -> None:
    with (
        pytest.raises(ConfigError, match=r"security\.required") as caught,
        Cluster(make_job(1, 1, security={"required": True})),
    ):
        pass
    assert caught.value.exit_code == 2


def test_metrics_listen_where_the_daemon_does() -> None:
    options = ServerOptions(0, bind="127.0.0.2:0", metrics_port=0)
    with ServerDaemon(make_job(1, 1), options) as daemon:
        assert daemon.metrics_port is not None
        socket.create_connection(("127.0.0.2", daemon.metrics_port), timeout=120).close()
        # At 127.0.0.1 another test may listen at this port.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.3", daemon.metrics_port), timeout=120)
