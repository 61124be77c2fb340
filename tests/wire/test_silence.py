"""Callers that say nothing: they wait in room of their own, and those who speak are answered."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from support.daemons import wait_for
from support.loopback import Loopback, loopback_method
from support.set_clock import SetClock

from taihu.allreduce.peer_service import PEER_SERVICE
from taihu.core.security.security import Security
from taihu.core.security.token import Token
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.base.room import SILENT_PLACES, Room
from taihu.core.wire.links.connection import Connection
from taihu.core.wire.links.direct_connection import DirectListener, connect_directly
from taihu.core.wire.serving.channel import open_channel
from taihu.core.wire.serving.metrics import MetricsPage, ServerMetrics
from taihu.core.wire.serving.server import RpcServer

TIMEOUT_S = 120.0


def test_one_more_takes_the_place_of_the_one_that_has_waited_longest() -> None:
    sent_away: list[str] = []
    with ExitStack() as stack, closing(Room(2, 1e6, SetClock())) as room:
        stack.enter_context(room.place(lambda: sent_away.append("first")))
        with room.place(lambda: sent_away.append("one that speaks")):
            pass
        stack.enter_context(room.place(lambda: sent_away.append("second")))
        assert (sent_away, len(room)) == ([], 2)
        stack.enter_context(room.place(lambda: sent_away.append("third")))
        assert (sent_away, len(room)) == (["first"], 2)


def test_a_room_that_closes_sends_all_away_and_whoever_comes_later() -> None:
    """A thread that waits for the words of such a caller would outlast the owner of the room."""
    room, left = Room(3, 1000.0), list[str]()
    with room.place(partial(left.append, "first")), room.place(partial(left.append, "second")):
        room.close()
        assert left == ["first", "second"]
    with room.place(partial(left.append, "late")):
        assert left == ["first", "second", "late"]


def test_who_waits_too_long_is_sent_away_and_others_stay() -> None:
    clock, sent_away = SetClock(), SimpleQueue[str]()
    with closing(Room(3, 5.0, clock)) as room, room.place(lambda: sent_away.put("early")):
        clock.now_s = 4.0
        with room.place(lambda: sent_away.put("late")):
            clock.now_s = 6.0
            with room._changed:
                room._changed.notify()
            assert sent_away.get(timeout=TIMEOUT_S) == "early"
            assert len(room) == 1
            assert sent_away.empty()


def test_a_burst_has_a_moment_before_anybody_is_sent_away() -> None:
    """Of calls that came at once with their requests some were sent away, before these were read."""
    clock, sent_away = SetClock(), SimpleQueue[int]()
    with closing(Room(2, 5.0, clock, at_least_s=0.1)) as room, ExitStack() as stack:
        for number in range(4):
            stack.enter_context(room.place(partial(sent_away.put, number)))
        assert sent_away.empty()
        clock.now_s = 0.2
        stack.enter_context(room.place(partial(sent_away.put, 4)))
        with room._changed:
            room._changed.notify()
        assert [sent_away.get(timeout=TIMEOUT_S) for _ in range(3)] == [0, 1, 2]
        # These two have the time of those that there is room for.
        assert len(room) == 2
        clock.now_s = 5.1
        with room._changed:
            room._changed.notify()
        assert sent_away.get(timeout=TIMEOUT_S) == 3


def silent(until: threading.Event) -> Iterator[bytes]:
    """The requests of a call that says nothing."""
    until.wait(60)
    yield from ()


def test_calls_without_their_request_keep_no_thread_from_others() -> None:
    """Forty streams that said nothing starved a coordinator of four threads."""
    over = threading.Event()
    with Loopback() as loopback, open_channel(loopback.address) as channel:
        mute: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary("/taihu.test.LoopbackService/Call")
        calls = [mute.future(silent(over), timeout=60) for _ in range(SILENT_PLACES + 30)]
        try:
            # Those that there is no room for are sent away before the others have had their time.
            wait_for(lambda: sum(call.done() for call in calls) >= 30, "silent calls stay", TIMEOUT_S)
            assert loopback_method(channel)(b"hello", timeout=TIMEOUT_S) == b"hello"
            assert not all(call.done() for call in calls)
        finally:
            over.set()


def test_a_call_without_its_request_ends_after_the_time_for_an_answer() -> None:
    over = threading.Event()
    server = RpcServer.create(threads=2, patience=Patience(0.6))
    address = f"127.0.0.1:{server.listen('127.0.0.1:0')}"
    server.start(())
    with open_channel(address) as channel:
        mute: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary("/grpc.health.v1.Health/Check")
        try:
            with pytest.raises(grpc.RpcError) as caught:
                mute(silent(over), timeout=TIMEOUT_S)
        finally:
            over.set()
            server.stop(0.0)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.CANCELLED


def test_a_stream_of_reflection_lasts_for_the_time_of_an_answer() -> None:
    over = threading.Event()
    server = RpcServer.create(threads=2, patience=Patience(0.6))
    address = f"127.0.0.1:{server.listen('127.0.0.1:0')}"
    server.start((), with_reflection=True)
    request = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()

    def requests() -> Iterator[bytes]:
        yield request
        over.wait(60)

    with open_channel(address) as channel:
        info: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        answers = info(requests(), timeout=TIMEOUT_S)
        try:
            assert next(answers)
            with pytest.raises(grpc.RpcError) as caught:
                next(answers)
        finally:
            over.set()
            server.stop(0.0)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("token", [None, Token("of-this-run-0123456789abcdef")])
def test_open_streams_keep_no_thread_from_calls(token: Token | None) -> None:
    """Calls have threads of their own, also where callers are asked who they are."""
    over, begun = threading.Event(), threading.Semaphore(0)
    security = Security(token=token)
    server = RpcServer.create(threads=2, security=security)
    address = f"127.0.0.1:{server.listen('127.0.0.1:0')}"

    def wait(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        begun.release()
        over.wait(60)
        yield b""

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Exchange": grpc.stream_stream_rpc_method_handler(wait),
        "OpenConnection": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
    }
    server.grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(PEER_SERVICE, handlers),))
    server.start(())
    with open_channel(address, security=security) as channel:
        stream: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{PEER_SERVICE}/Exchange")
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{PEER_SERVICE}/OpenConnection")
        streams = [stream(silent(over), timeout=60) for _ in range(2 + SILENT_PLACES)]
        try:
            assert all(begun.acquire(timeout=TIMEOUT_S) for _ in streams)
            assert call(b"hello", timeout=TIMEOUT_S) == b"hello"
        finally:
            over.set()
            server.stop(0.0)


def connected(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S)) for _ in range(count)]


def threads_named(*names: str) -> int:
    return sum(any(name in thread.name for name in names) for thread in threading.enumerate())


def test_connections_to_the_page_that_say_nothing_keep_few_threads() -> None:
    """Each of them had a thread, 575 of them."""
    before = threading.active_count()
    with MetricsPage(ServerMetrics(0).registry, 0, "127.0.0.1") as page, ExitStack() as stack:
        for connection in connected(stack, page.port, 100):
            connection.sendall(b"G")
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=TIMEOUT_S) as answer:
                assert answer.status == 200
        wait_for(lambda: threading.active_count() - before < 20, "each connection has a thread", TIMEOUT_S)


def test_connections_beside_grpc_that_say_nothing_keep_few_threads() -> None:
    taken: SimpleQueue[Connection] = SimpleQueue()
    with closing(DirectListener("127.0.0.1")) as listener, ExitStack() as stack:
        port, token = listener.expect(3, taken.put)
        connected(stack, port, 2 * SILENT_PLACES)
        with (
            closing(connect_directly("127.0.0.1", port, token)) as near,
            closing(taken.get(timeout=TIMEOUT_S)) as far,
        ):
            near.write([b"hello"])
            heard = bytearray(5)
            assert far.read_into([memoryview(heard)])
            assert heard == b"hello"
        wait_for(lambda: threads_named("direct-greet") <= SILENT_PLACES, "each has a thread", TIMEOUT_S)
