"""Requests that are none: their calls end, are counted and told of, and leave nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.daemons import wait_for

from benchmarks.inputs.strangers import calls, raw
from benchmarks.inputs.strangers.http2 import Connection, message
from benchmarks.inputs.strangers.kinds import counted_kinds
from benchmarks.inputs.strangers.run import memory_mb
from benchmarks.inputs.strangers.target import Target
from taihu.core.base.errors import FrameError
from taihu.core.security.security import Security
from taihu.core.wire.base.room import SILENT_PLACES
from taihu.core.wire.serving.channel import open_channel
from taihu.core.wire.serving.health_service import WATCH_PLACES
from taihu.core.wire.serving.requests import MOST_PARTS, parse
from taihu.core.wire.serving.server import RpcServer
from taihu.protos import coordinator_pb2 as pb

TIMEOUT_S = 120.0
HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
STREAMS_OF_A_CONNECTION = 100
"""gRPC's option `grpc.max_concurrent_streams` of our servers."""


@contextmanager
def serving() -> Iterator[tuple[RpcServer, Security, str]]:
    security = Security()
    server = RpcServer.create(threads=2, security=security)
    address = f"127.0.0.1:{server.listen('127.0.0.1:0')}"
    server.start((), with_reflection=True)
    try:
        yield server, security, address
    finally:
        server.stop(0.0)


READ, WRITE = HealthCheckResponse.FromString, HealthCheckRequest.SerializeToString


def check(channel: grpc.Channel) -> int:
    method = channel.unary_unary(f"{HEALTH}/Check", WRITE, READ)
    return method(HealthCheckRequest(), timeout=TIMEOUT_S).status


@pytest.mark.parametrize("method", [f"{HEALTH}/Check", f"{HEALTH}/Watch", REFLECTION])
def test_calls_whose_request_is_none_keep_no_place_from_later_ones(method: str) -> None:
    """Each kept its stream of the connection: after a hundred of them nobody on it was answered."""
    count = STREAMS_OF_A_CONNECTION + 20
    with capture_logs() as logs, serving() as (_, security, address), open_channel(address) as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
        for number in range(count):
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([calls.broken(number)]), timeout=TIMEOUT_S))
            assert isinstance(caught.value, grpc.Call)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert re.fullmatch(r"expected a \w+Request, got \d+ bytes.*", str(caught.value.details()))
        assert check(channel) == HealthCheckResponse.SERVING
        assert security.refusals.calls == {(method, "request"): count}
    assert 1 <= sum(line["event"] == "call refused" for line in logs) <= 10


def test_a_second_message_that_is_none_ends_its_stream() -> None:
    with serving() as (_, _, address), open_channel(address) as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(REFLECTION)
        answers = call(iter([b"\x3a\x00", calls.broken(0)]), timeout=TIMEOUT_S)
        assert next(answers)
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def parts(request: Message) -> int:
    """The number of messages that a request consists of, by its text."""
    return 1 + sum(line.endswith("{") for line in str(request).splitlines())


LAYERS = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4)
WORDS = st.text(max_size=3)


@settings(max_examples=50)
@given(LAYERS, st.dictionaries(WORDS, WORDS, max_size=3))
def test_a_request_is_as_large_as_its_messages_are_many(layers: list[list[int]], words: dict[str, str]) -> None:
    request = pb.JoinRequest(member=pb.Member(rank=1))
    for tensors in layers:
        layer = request.layout.layers.add(name="layer")
        for size in tensors:
            layer.tensors.add(shape=[size])
    expected = parts(request)
    # Entries of a map are text, not messages of ours.
    request.settings.update(words)
    content = request.SerializeToString()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taihu.core.wire.serving.requests.MOST_PARTS", expected)
        assert parse(pb.JoinRequest.FromString, content) == request
        patch.setattr("taihu.core.wire.serving.requests.MOST_PARTS", expected - 1)
        with pytest.raises(FrameError, match=f"JoinRequest: more than {expected - 1} messages"):
            parse(pb.JoinRequest.FromString, content)


def test_a_layout_of_more_layers_than_any_model_is_refused_before_it_is_read() -> None:
    """Five megabytes of empty layers kept a coordinator busy for 13 s, and took 450 MB."""
    layout = b"\x0a\x00" * (MOST_PARTS + 1)
    request = pb.JoinRequest()
    request.layout.MergeFromString(layout)
    with pytest.raises(FrameError, match="more than"):
        parse(pb.JoinRequest.FromString, request.SerializeToString())


def test_watchers_that_take_nothing_keep_nobody_waiting() -> None:
    """The answer to the first of them waited for it with the lock that all others need."""
    with serving() as (server, _, address), ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(Connection(address, window=0)).call(f"{HEALTH}/Watch", [message(b"")])
        wait_for(lambda: len(server._health._watchers) == 3, "nobody watches", TIMEOUT_S)
        with open_channel(address) as channel:
            assert check(channel) == HealthCheckResponse.SERVING
            answers = channel.unary_stream(f"{HEALTH}/Watch", WRITE, READ)(HealthCheckRequest(), timeout=TIMEOUT_S)
            assert next(answers).status == HealthCheckResponse.SERVING
            ended = threading.Thread(target=server.stop, args=(0.2,))
            ended.start()
            assert next(answers).status == HealthCheckResponse.NOT_SERVING
            ended.join(TIMEOUT_S)
            assert not ended.is_alive()


def test_one_more_watcher_than_there_is_room_for_takes_the_place_of_the_oldest_one() -> None:
    with serving() as (server, _, address), open_channel(address) as channel:
        watch = channel.unary_stream(f"{HEALTH}/Watch", WRITE, READ)
        watches = []
        for number in range(WATCH_PLACES + 4):
            watches.append(watch(HealthCheckRequest(service=f"service {number}"), timeout=TIMEOUT_S))
            assert next(watches[-1]).status == HealthCheckResponse.SERVICE_UNKNOWN
        for oldest in watches[:4]:
            with pytest.raises(grpc.RpcError) as caught:
                next(oldest)
            assert isinstance(caught.value, grpc.Call)
            assert caught.value.code() is grpc.StatusCode.CANCELLED
        assert len(server._health._watchers) == WATCH_PLACES
        # No name that somebody asks for is remembered.
        assert set(server._health._serving) == {""}


def test_watches_without_their_request_keep_no_place_from_others() -> None:
    over = threading.Event()

    def silent() -> Iterator[bytes]:
        over.wait(TIMEOUT_S)
        yield from ()

    with serving() as (_, _, address), open_channel(address) as channel:
        mute: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"{HEALTH}/Watch")
        silents = [mute(silent(), timeout=TIMEOUT_S) for _ in range(SILENT_PLACES)]
        try:
            assert next(mute(iter([b""]), timeout=TIMEOUT_S))
        finally:
            over.set()
        assert silents


SERVER = """
import sys
from taihu.core.process.programs.preparation import prepare_process
prepare_process({})
from taihu.core.wire.serving.server import RpcServer
server = RpcServer.create(threads=8)
print(server.listen("127.0.0.1:0"), flush=True)
server.start((), with_reflection=True)
sys.stdin.read()
"""


def test_strangers_of_all_kinds_leave_no_memory_behind_and_others_are_served() -> None:
    """1,500 undecodable calls took 30 MB for good; `python -m benchmarks strangers` is the long form."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        target = Target(f"127.0.0.1:{int(server.stdout.readline())}")
        try:
            with open_channel(target.address) as before, raw.slow(target, 10), raw.taking_nothing(target, 10):
                assert check(before) == HealthCheckResponse.SERVING
                calls.unknown(target, 500)
                begun_mb = memory_mb(server.pid)
                ends = health(target, 1500)
                for kind, count in counted_kinds(60).values():
                    assert sum(kind(target, count).values()) == count
                with open_channel(target.address) as later:
                    assert check(before) == check(later) == HealthCheckResponse.SERVING
                assert memory_mb(server.pid) - begun_mb < 20.0
            assert ends == {"INVALID_ARGUMENT": 1500}
        finally:
            server.stdin.close()
            server.kill()


def health(target: Target, count: int) -> dict[str, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "METHODS", (f"{HEALTH}/Check",))
        return dict(calls.undecodable(target, count))
