"""Servers and channels of gRPC: the same on this machine and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from support.worlds import GUARD_S, SERVICE, World, everywhere

Code = grpc.StatusCode

ONE = f"/{SERVICE}/One"
MANY = f"/{SERVICE}/Many"


def error_of(call: Callable[[], Any]) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert isinstance(caught.value, grpc.Call)
    return caught.value


class Gate:
    """A handler that waits until it may go on, and says when its calls end."""

    def __init__(self, world: World) -> None:
        self.begun = world.threads.Semaphore(0)
        self.may = world.threads.Event()
        self.ended = world.threads.Semaphore(0)

    def answer(self, request: bytes, context: Any) -> bytes:
        context.add_callback(self.ended.release)
        self.begun.release()
        assert self.may.wait(GUARD_S)
        return request

    def wait_for_calls(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=GUARD_S)

    @property
    def handlers(self) -> dict[str, Any]:
        return {"One": grpc.unary_unary_rpc_method_handler(self.answer)}


def echo() -> dict[str, Any]:
    return {"One": grpc.unary_unary_rpc_method_handler(lambda request, _: request)}


@everywhere
def test_a_closed_channel_ends_its_calls(world: World) -> None:
    gate = Gate(world)
    with world.serving(gate.handlers) as (_, port):
        channel = world.channel(port)
        one = channel.unary_unary(ONE)
        future = one.future(b"a")
        gate.wait_for_calls()
        channel.close()
        assert (future.code(), future.details()) == (Code.CANCELLED, "Channel closed!")
        assert not future.cancelled()
        assert error_of(future.result) is future
        assert gate.ended.acquire(timeout=GUARD_S)
        with pytest.raises(ValueError, match="closed channel"):
            one(b"b")
        channel.close()
        gate.may.set()


@everywhere
def test_a_server_that_stops_lets_calls_end(world: World) -> None:
    gate = Gate(world)
    with world.serving(gate.handlers) as (server, port), world.channel(port) as channel:
        one = channel.unary_unary(ONE)
        future = one.future(b"a")
        gate.wait_for_calls()
        down = server.stop(GUARD_S)
        assert not down.is_set()
        error = error_of(lambda: one(b"b"))
        while error.code() is Code.CANCELLED:  # it was on its way before the client heard that the server stops
            error = error_of(lambda: one(b"b"))
        assert error.code() is Code.UNAVAILABLE
        assert "Connection refused" in error.details()
        gate.may.set()
        assert future.result(timeout=GUARD_S) == b"a"
        assert down.wait(GUARD_S)
        assert server.stop(None).is_set()
        assert server.wait_for_termination(GUARD_S) is False


@everywhere
def test_a_server_that_stops_is_down_once_all_calls_have_ended(world: World) -> None:
    begun, may = world.threads.Event(), world.threads.Event()

    def answer(request: bytes, _: Any) -> bytes:
        begun.set()
        assert may.wait(GUARD_S)
        return request

    handlers: dict[str, Any] = {"One": grpc.unary_unary_rpc_method_handler(answer)}
    with world.serving(handlers) as (server, port), world.channel(port) as channel:
        future = channel.unary_unary(ONE).future(b"a")
        assert begun.wait(GUARD_S)
        before_s = world.clocks.monotonic()
        down = server.stop(10 * GUARD_S)
        may.set()
        assert down.wait(GUARD_S)
        assert world.clocks.monotonic() - before_s < GUARD_S
        assert future.result() == b"a"


@everywhere
def test_a_server_that_stops_cuts_calls_after_its_grace(world: World) -> None:
    gate = Gate(world)
    with world.serving(gate.handlers) as (server, port), world.channel(port) as channel:
        future = channel.unary_unary(ONE).future(b"a")
        gate.wait_for_calls()
        down = server.stop(0.05)
        error = error_of(future.result)
        assert (error.code(), error.details()) == (Code.UNAVAILABLE, "Cancelling all calls")
        assert down.wait(GUARD_S)
        assert gate.ended.acquire(timeout=GUARD_S)
        gate.may.set()


@everywhere
def test_a_server_that_stops_without_grace_cuts_calls_at_once(world: World) -> None:
    gate = Gate(world)
    with world.serving(gate.handlers) as (server, port), world.channel(port) as channel:
        future = channel.unary_unary(ONE).future(b"a")
        gate.wait_for_calls()
        assert server.stop(None).is_set()
        assert error_of(future.result).code() is Code.UNAVAILABLE
        gate.may.set()


@everywhere
def test_answers_of_a_call_that_has_ended_outlive_the_server(world: World) -> None:
    ended = world.threads.Event()

    def answer(_: bytes, context: Any) -> Iterator[bytes]:
        context.add_callback(ended.set)
        yield b"a"
        yield b"b"

    with world.serving({"Many": grpc.unary_stream_rpc_method_handler(answer)}) as (server, port):
        channel = world.channel(port)
        call = channel.unary_stream(MANY)(b"")
        assert ended.wait(GUARD_S)
        assert server.stop(None).wait(GUARD_S)
    world.clocks.sleep(0.02)
    assert list(call) == [b"a", b"b"]
    channel.close()


@everywhere
def test_nobody_listens(world: World) -> None:
    with world.serving(echo()) as (server, port):
        server.stop(None)
        with world.channel(port) as channel:
            one = channel.unary_unary(ONE)
            error = error_of(lambda: one(b"a"))
            assert error.code() is Code.UNAVAILABLE
            assert "failed to connect to all addresses" in error.details()
            assert "Connection refused" in error.details()
            assert (error.initial_metadata() or (), error.trailing_metadata()) == ((), ())
            waiting = one.future(b"a", wait_for_ready=True, timeout=0.3)
            assert error_of(waiting.result).code() is Code.DEADLINE_EXCEEDED
            waiting = one.future(b"a", wait_for_ready=True)
            assert waiting.cancel()
            with pytest.raises(grpc.FutureCancelledError):
                waiting.result()


@everywhere
def test_a_call_that_waits_is_answered_once_somebody_listens(world: World) -> None:
    with world.serving(echo()) as (server, port):
        server.stop(None)
    with world.channel(port) as channel:
        one = channel.unary_unary(ONE)
        waiting = one.future(b"a", wait_for_ready=True)
        # Whoever does not wait fails, also while others wait.
        assert error_of(lambda: one(b"b")).code() is Code.UNAVAILABLE
        with world.serving(echo(), port=port):
            assert waiting.result(timeout=GUARD_S) == b"a"
            assert one(b"b") == b"b"


@everywhere
def test_a_channel_finds_the_next_server(world: World) -> None:
    with world.serving(echo()) as (server, port), world.channel(port) as channel:
        one = channel.unary_unary(ONE)
        assert one(b"a") == b"a"
        assert server.stop(None).wait(GUARD_S)
        with world.serving(echo(), port=port):
            assert one(b"b", wait_for_ready=True, timeout=GUARD_S) == b"b"


@everywhere
def test_a_port_is_taken_once(world: World) -> None:
    with world.serving(echo()) as (_, port):
        pool = world.pools.ThreadPoolExecutor(1)
        other = world.grpc.server(pool, options=(("grpc.so_reuseport", 0),))
        with pytest.raises(RuntimeError):
            other.add_insecure_port(f"127.0.0.1:{port}")
        other.start()
        with pytest.raises(ValueError, match="already-started"):
            other.start()
        other.stop(None)
        pool.shutdown()


@everywhere
def test_calls_wait_for_a_thread(world: World) -> None:
    gate = Gate(world)
    with world.serving(gate.handlers, threads=2) as (_, port), world.channel(port) as channel:
        futures = [channel.unary_unary(ONE).future(b"%d" % n) for n in range(5)]
        gate.wait_for_calls(2)
        world.clocks.sleep(0.02)
        assert not gate.begun.acquire(blocking=False)
        gate.may.set()
        assert [each.result(timeout=GUARD_S) for each in futures] == [b"%d" % n for n in range(5)]


@everywhere
def test_there_is_a_limit_of_calls(world: World) -> None:
    gate = Gate(world)
    with world.serving(gate.handlers, threads=1, most_calls=2) as (_, port), world.channel(port) as channel:
        one = channel.unary_unary(ONE)
        first = one.future(b"a")
        gate.wait_for_calls()
        rest = [one.future(b"%d" % n) for n in range(3)]
        refused: list[Any] = []
        world.until(lambda: len([each for each in rest if each.done()]) == 2)
        refused = [each for each in rest if each.done()]
        for each in refused:
            error = error_of(each.result)
            assert (error.code(), error.details()) == (Code.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
        gate.may.set()
        assert first.result() == b"a"
        assert all(each.result(timeout=GUARD_S) for each in rest if each not in refused)
        gate.wait_for_calls()
        assert one(b"b") == b"b"


@everywhere
def test_a_handler_may_have_threads_of_its_own(world: World) -> None:
    gate, names = Gate(world), []

    def answer(request: bytes, _: Any) -> bytes:
        names.append(world.threads.current_thread().name)
        return request

    own = world.pools.ThreadPoolExecutor(1, thread_name_prefix="own")
    answer.experimental_thread_pool = own  # type: ignore[attr-defined]
    handlers = {**gate.handlers, "Own": grpc.unary_unary_rpc_method_handler(answer)}
    with world.serving(handlers, threads=1) as (_, port), world.channel(port) as channel:
        first = channel.unary_unary(ONE).future(b"a")
        gate.wait_for_calls()
        assert channel.unary_unary(f"/{SERVICE}/Own")(b"b") == b"b"
        gate.may.set()
        assert first.result(timeout=GUARD_S) == b"a"
        assert names == ["own_0"]
    own.shutdown()


class _Noting(grpc.ServerInterceptor):
    def __init__(self, name: str, seen: list[str]) -> None:
        self._name, self._seen = name, seen

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        metadata = {each.key: each.value for each in details.invocation_metadata}
        self._seen.append(f"{self._name} {details.method} {metadata.get('who')}")
        if metadata.get("who") == "nobody" and self._name == "second":
            return None
        if metadata.get("who") == "trouble":
            raise ValueError("broken")
        return continuation(details)


@everywhere
def test_interceptors_of_servers_are_asked_in_order(world: World) -> None:
    seen: list[str] = []
    interceptors = [_Noting("first", seen), _Noting("second", seen)]
    with world.serving(echo(), interceptors=interceptors) as (_, port), world.channel(port) as channel:
        one = channel.unary_unary(ONE)
        assert one(b"a", metadata=(("who", "me"),)) == b"a"
        assert seen == [f"first {ONE} me", f"second {ONE} me"]
        error = error_of(lambda: one(b"a", metadata=(("who", "nobody"),)))
        assert (error.code(), error.details()) == (Code.UNIMPLEMENTED, "Method not found!")
        error = error_of(lambda: one(b"a", metadata=(("who", "trouble"),)))
        assert (error.code(), error.details()) == (Code.UNKNOWN, "Error in service handler!")


class _Saying(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._with_name(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._with_name(details), request)

    def _with_name(self, details: Any) -> Any:
        return details._replace(metadata=(("who", "me"),))


@everywhere
def test_interceptors_of_channels_change_calls(world: World) -> None:
    def answer(request: bytes, context: Any) -> bytes:
        return str(dict(context.invocation_metadata()).get("who")).encode()

    def refuse(request: bytes, context: Any) -> Iterator[bytes]:
        yield answer(request, context)
        context.abort(Code.ABORTED, "enough")

    handlers: dict[str, Any] = {
        "One": grpc.unary_unary_rpc_method_handler(answer),
        "Many": grpc.unary_stream_rpc_method_handler(refuse),
    }
    with world.serving(handlers) as (_, port), world.channel(port) as plain:
        channel = world.grpc.intercept_channel(plain, _Saying())
        assert channel.unary_unary(ONE)(b"") == b"me"
        assert channel.unary_unary(ONE).future(b"").result() == b"me"
        assert channel.unary_unary(ONE).with_call(b"")[0] == b"me"
        call = channel.unary_stream(MANY)(b"")
        assert next(call) == b"me"
        assert error_of(lambda: next(call)).details() == "enough"


@everywhere
def test_registered_and_generic_handlers(world: World) -> None:
    class Anything(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            method = details.method.encode()
            return grpc.unary_unary_rpc_method_handler(lambda *_: method) if b"Any" in method else None

    pool = world.pools.ThreadPoolExecutor(2)
    server = world.grpc.server(pool, handlers=(Anything(),))
    server.add_registered_method_handlers("test.Registered", echo())
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with world.channel(port) as channel:
        assert channel.unary_unary("/test.Registered/One")(b"a") == b"a"
        assert channel.unary_unary("/test.Any/Thing")(b"a") == b"/test.Any/Thing"
        assert error_of(lambda: channel.unary_unary("/test.Other/One")(b"a")).code() is Code.UNIMPLEMENTED
    server.stop(None)
    pool.shutdown()


@everywhere
def test_a_server_knows_who_calls(world: World) -> None:
    seen: list[Any] = []

    def answer(request: bytes, context: Any) -> bytes:
        seen.append((context.peer(), context.peer_identities(), context.peer_identity_key(), context.auth_context()))
        return request

    with world.serving({"One": grpc.unary_unary_rpc_method_handler(answer)}) as (_, port):
        for _ in range(2):
            with world.channel(port) as channel:
                one = channel.unary_unary(ONE)
                assert (one(b"a"), one(b"a")) == (b"a", b"a")
    peers = [each[0] for each in seen]
    assert all(each.startswith("ipv4:127.0.0.1:") for each in peers)
    assert peers[0] == peers[1] != peers[2] == peers[3]
    assert seen[0][1:3] == (None, None)
    assert seen[0][3]["transport_security_type"] == [b"insecure"]


@everywhere
def test_a_channel_to_a_name(world: World) -> None:
    with world.serving(echo()) as (_, port):
        with world.grpc.insecure_channel(f"localhost:{port}") as channel:
            assert channel.unary_unary(ONE)(b"a") == b"a"
        with world.grpc.insecure_channel(f"nobody.invalid:{port}") as channel:
            error = error_of(lambda: channel.unary_unary(ONE)(b"a"))
            assert error.code() is Code.UNAVAILABLE
            assert "nobody.invalid" in error.details()
