"""Calls of gRPC: the same on this machine and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from support.worlds import GUARD_S, SERVICE, World, everywhere

Code = grpc.StatusCode


def unary(answer: Callable[[Any, Any], Any]) -> Any:
    return grpc.unary_unary_rpc_method_handler(answer)


def answers(answer: Callable[[Any, Any], Any]) -> Any:
    return grpc.unary_stream_rpc_method_handler(answer)


def collects(answer: Callable[[Any, Any], Any]) -> Any:
    return grpc.stream_unary_rpc_method_handler(answer)


def both_ways(answer: Callable[[Any, Any], Any]) -> Any:
    return grpc.stream_stream_rpc_method_handler(answer)


def path(name: str) -> str:
    return f"/{SERVICE}/{name}"


def error_of(call: Callable[[], Any]) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert isinstance(caught.value, grpc.Call)
    return caught.value


def state_of(future: Any) -> tuple[bool, bool, bool]:
    return future.running(), future.done(), future.cancelled()


def told(error: Any) -> tuple[Any, str]:
    return error.code(), error.details()


@everywhere
def test_each_kind_of_call_is_answered_in_order(world: World) -> None:
    handlers = {
        "One": unary(lambda request, _: request + b"!"),
        "Many": answers(lambda request, _: (b"%s%d" % (request, n) for n in range(50))),
        "Collect": collects(lambda requests, _: b"".join(requests)),
        "Both": both_ways(lambda requests, _: (request + b"!" for request in requests)),
    }
    sent = [b"%d" % n for n in range(50)]
    with world.serving(handlers) as (_, port), world.channel(port) as channel:
        assert channel.unary_unary(path("One"))(b"a", timeout=GUARD_S) == b"a!"
        assert list(channel.unary_stream(path("Many"))(b"a")) == [b"a%d" % n for n in range(50)]
        assert channel.stream_unary(path("Collect"))(iter(sent)) == b"".join(sent)
        assert list(channel.stream_stream(path("Both"))(iter(sent))) == [each + b"!" for each in sent]
        assert channel.unary_unary(path("One"))(b"", timeout=GUARD_S) == b"!"
        assert list(channel.stream_stream(path("Both"))(iter(()))) == []


@everywhere
def test_serializers_are_asked_on_both_sides(world: World) -> None:
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda n, _: n + 1, int, lambda n: b"%d" % n)
    with world.serving({"Next": handler}) as (_, port), world.channel(port) as channel:
        call = channel.unary_unary(path("Next"), lambda n: b"%d" % n, int)
        assert call(41) == 42
        bad = channel.unary_unary(path("Next"))
        assert told(error_of(lambda: bad(b"no number"))) == (Code.INTERNAL, "Exception deserializing request!")
        bad = channel.unary_unary(path("Next"), lambda n: n.nothing)
        assert told(error_of(lambda: bad(1))) == (Code.INTERNAL, "Exception serializing request!")
        bad = channel.unary_unary(path("Next"), None, lambda text: text.nothing)
        assert told(error_of(lambda: bad(b"1"))) == (Code.INTERNAL, "Exception deserializing response!")
    handler = grpc.unary_unary_rpc_method_handler(lambda n, _: n, None, lambda n: n.nothing)
    with world.serving({"Next": handler}) as (_, port), world.channel(port) as channel:
        call = channel.unary_unary(path("Next"))
        assert told(error_of(lambda: call(b"1"))) == (Code.INTERNAL, "Failed to serialize response!")


@everywhere
def test_a_future_tells_once(world: World) -> None:
    may = world.threads.Event()

    def answer(request: bytes, _: Any) -> bytes:
        assert may.wait(GUARD_S)
        return request

    with world.serving({"One": unary(answer)}) as (_, port), world.channel(port) as channel:
        future = channel.unary_unary(path("One")).future(b"a")
        told: Any = world.queues.SimpleQueue()
        future.add_done_callback(told.put)
        assert state_of(future) == (True, False, False)
        assert future.is_active()
        with pytest.raises(grpc.FutureTimeoutError):
            future.result(timeout=0.01)
        may.set()
        assert future.result(timeout=GUARD_S) == b"a"
        assert told.get(timeout=GUARD_S) is future
        assert state_of(future) == (False, True, False)
        assert not future.is_active()
        assert (future.code(), future.details()) == (Code.OK, "")
        assert (future.exception(), future.traceback()) == (None, None)
        now: list[Any] = []
        future.add_done_callback(now.append)
        assert now == [future]
        assert future.add_callback(lambda: None) is False
        assert future.cancel() is False
        assert told.empty()


@everywhere
def test_metadata_goes_both_ways(world: World) -> None:
    seen: list[Any] = []

    def answer(request: bytes, context: Any) -> bytes:
        seen.extend(context.invocation_metadata())
        context.send_initial_metadata((("first", "1"), ("raw-bin", b"\x00\xff")))
        with pytest.raises(ValueError, match="metadata"):
            context.send_initial_metadata(())
        context.set_trailing_metadata((("last", "2"), ("last", "3")))
        return request

    with world.serving({"One": unary(answer)}) as (_, port), world.channel(port) as channel:
        one = channel.unary_unary(path("One"))
        answered, call = one.with_call(b"a", metadata=(("who", "me"), ("key-bin", b"\x01\x02"), ("who", "you")))
        assert answered == b"a"
        mine = [(each.key, each.value) for each in seen if each.key != "user-agent"]
        assert mine == [("who", "me"), ("key-bin", b"\x01\x02"), ("who", "you")]
        assert [each.value.startswith("grpc-python/") for each in seen if each.key == "user-agent"] == [True]
        assert [tuple(each) for each in call.initial_metadata()] == [("first", "1"), ("raw-bin", b"\x00\xff")]
        assert [tuple(each) for each in call.trailing_metadata()] == [("last", "2"), ("last", "3")]
        assert (call.code(), call.details(), call.is_active()) == (Code.OK, "", False)


@everywhere
def test_initial_metadata_comes_before_the_first_answer(world: World) -> None:
    may = world.threads.Event()

    def answer(_: bytes, context: Any) -> Iterator[bytes]:
        context.send_initial_metadata((("first", "1"),))
        assert may.wait(GUARD_S)
        yield b"a"

    with world.serving({"Many": answers(answer)}) as (_, port), world.channel(port) as channel:
        call = channel.unary_stream(path("Many"))(b"")
        assert [tuple(each) for each in call.initial_metadata()] == [("first", "1")]
        may.set()
        assert list(call) == [b"a"]
        assert call.trailing_metadata() == ()


@everywhere
def test_an_abort_ends_the_call_with_its_words(world: World) -> None:
    def answer(_: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("why", "because"),))
        context.abort(Code.FAILED_PRECONDITION, "no: ä")
        raise AssertionError

    def refuse(_: Iterator[bytes], context: Any) -> Iterator[bytes]:
        answer(b"", context)
        yield b""

    handlers = {
        "One": unary(answer),
        "Many": answers(lambda _, context: refuse(iter(()), context)),
        "Collect": collects(lambda _, context: answer(b"", context)),
        "Both": both_ways(refuse),
    }
    with world.serving(handlers) as (_, port), world.channel(port) as channel:
        calls: list[Callable[[], Any]] = [
            lambda: channel.unary_unary(path("One"))(b""),
            lambda: channel.unary_unary(path("One")).future(b"").result(),
            lambda: list(channel.unary_stream(path("Many"))(b"")),
            lambda: channel.stream_unary(path("Collect"))(iter((b"a", b"b"))),
            lambda: list(channel.stream_stream(path("Both"))(iter((b"a", b"b")))),
        ]
        for call in calls:
            error = error_of(call)
            assert told(error) == (Code.FAILED_PRECONDITION, "no: ä")
            assert [tuple(each) for each in error.trailing_metadata()] == [("why", "because")]


@everywhere
def test_answers_before_an_abort_are_read_by_who_waits_for_them(world: World) -> None:
    taken = world.threads.Semaphore(0)

    def answer(_: bytes, context: Any) -> Iterator[bytes]:
        yield b"a"
        assert taken.acquire(timeout=GUARD_S)
        yield b"b"
        assert taken.acquire(timeout=GUARD_S)
        context.abort(Code.ABORTED, "enough")

    with world.serving({"Many": answers(answer)}) as (_, port), world.channel(port) as channel:
        call = channel.unary_stream(path("Many"))(b"")
        for expected in (b"a", b"b"):
            assert next(call) == expected
            taken.release()
        error = error_of(lambda: next(call))
        assert error is call
        assert told(error) == (Code.ABORTED, "enough")
        assert error_of(lambda: next(call)) is call


@everywhere
def test_the_end_waits_until_all_answers_are_taken(world: World) -> None:
    ended = world.threads.Event()

    def answer(is_good: bytes, context: Any) -> Iterator[bytes]:
        assert context.add_callback(ended.set)
        yield b"a"
        yield b"b"
        if not is_good:
            context.abort(Code.ABORTED, "enough")

    with world.serving({"Many": answers(answer)}) as (_, port), world.channel(port) as channel:
        for is_good in (b"", b"good"):
            call = channel.unary_stream(path("Many"))(is_good)
            assert ended.wait(GUARD_S)
            world.clocks.sleep(0.05)
            assert call.is_active()
            assert [next(call), next(call)] == [b"a", b"b"]
            if not is_good:
                assert error_of(lambda: next(call)) is call  # noqa: B023 - at once
                assert told(call) == (Code.ABORTED, "enough")
            ended.clear()
        assert list(call) == []
        assert call.code() is Code.OK
        with pytest.raises(StopIteration):
            next(call)


@everywhere
def test_codes_may_be_set_without_an_abort(world: World) -> None:
    def answer(request: bytes, context: Any) -> bytes:
        context.set_code(Code.NOT_FOUND)
        context.set_details("nothing there")
        assert (context.code(), context.details()) == (Code.NOT_FOUND, b"nothing there")
        return request

    def many(request: bytes, context: Any) -> Iterator[bytes]:
        yield request
        context.set_code(Code.NOT_FOUND)

    with world.serving({"One": unary(answer), "Many": answers(many)}) as (_, port), world.channel(port) as channel:
        error = error_of(lambda: channel.unary_unary(path("One"))(b"a"))
        assert told(error) == (Code.NOT_FOUND, "nothing there")
        error = error_of(lambda: list(channel.unary_stream(path("Many"))(b"a")))
        assert told(error) == (Code.NOT_FOUND, "")


@everywhere
def test_errors_of_handlers_are_told(world: World) -> None:
    def fail(_: Any, context: Any) -> Any:
        raise ValueError("broken")

    def fail_later(_: Any, context: Any) -> Iterator[bytes]:
        raise ValueError("broken later")
        yield b""

    handlers = {"One": unary(fail), "Many": answers(fail_later), "Both": both_ways(fail)}
    with world.serving(handlers) as (_, port), world.channel(port) as channel:
        error = error_of(lambda: channel.unary_unary(path("One"))(b""))
        assert told(error) == (Code.UNKNOWN, "Exception calling application: broken")
        error = error_of(lambda: list(channel.unary_stream(path("Many"))(b"")))
        assert told(error) == (Code.UNKNOWN, "Exception iterating responses: broken later")
        error = error_of(lambda: list(channel.stream_stream(path("Both"))(iter(()))))
        assert told(error) == (Code.UNKNOWN, "Exception calling application: broken")
        error = error_of(lambda: channel.unary_unary(path("Other"))(b""))
        assert told(error) == (Code.UNIMPLEMENTED, "Method not found!")
        error = error_of(lambda: list(channel.stream_stream("/other.Service/One")(iter((b"a",)))))
        assert told(error) == (Code.UNIMPLEMENTED, "Method not found!")
        error = error_of(lambda: channel.stream_unary(path("One"))(iter(())))
        assert error.code() is Code.UNIMPLEMENTED
        assert "requires exactly one request message." in error.details()


# Under load no deadline is long enough at once.
LONGER_AND_LONGER = (0.3, 3.0, 30.0)
# gRPC rounds a deadline up to a millisecond where it is set, where it is sent and where it arrives.
ROUNDED_S = 0.003


@everywhere
def test_a_deadline_ends_the_call_on_both_sides(world: World) -> None:
    ended, remaining = world.threads.Event(), []
    after: list[Any] = []

    def answer(request: bytes, context: Any) -> bytes:
        mine, remaining_s = world.threads.Event(), context.time_remaining()
        if not context.add_callback(mine.set):
            return request
        remaining.append(remaining_s)
        assert mine.wait(GUARD_S)
        after.append((context.is_active(), context.add_callback(lambda: None)))
        ended.set()
        return request

    with world.serving({"One": unary(answer)}) as (_, port), world.channel(port) as channel:
        one = channel.unary_unary(path("One"))
        for timeout_s in LONGER_AND_LONGER:
            error = error_of(lambda: one(b"", timeout=timeout_s))  # noqa: B023 - at once
            assert told(error) == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
            if remaining:
                break
        assert ended.wait(GUARD_S)
        assert after == [(False, False)]
        assert 0.0 < remaining[0] <= timeout_s + ROUNDED_S
        future = one.future(b"", timeout=0.05)
        assert 0.0 <= future.time_remaining() <= 0.05
        assert future.exception().code() is Code.DEADLINE_EXCEEDED
        assert future.time_remaining() == 0.0
        assert not future.cancelled()


@everywhere
def test_without_a_deadline_time_remains(world: World) -> None:
    remaining: list[Any] = []

    def answer(request: bytes, context: Any) -> bytes:
        remaining.append(context.time_remaining())
        return request

    with world.serving({"One": unary(answer)}) as (_, port), world.channel(port) as channel:
        future = channel.unary_unary(path("One")).future(b"")
        assert future.time_remaining() is None
        assert future.result() == b""
        assert remaining[0] > 1e9


@everywhere
def test_a_deadline_ends_an_iteration(world: World) -> None:
    may = world.threads.Event()

    def answer(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        yield next(requests)
        assert may.wait(GUARD_S)

    with world.serving({"Both": both_ways(answer)}) as (_, port), world.channel(port) as channel:
        for timeout_s in LONGER_AND_LONGER:
            call, got = channel.stream_stream(path("Both"))(iter((b"a",)), timeout=timeout_s), []
            error = error_of(lambda: got.extend(call))  # noqa: B023 - at once
            assert error.code() is Code.DEADLINE_EXCEEDED
            if got:
                break
        assert got == [b"a"]
        may.set()


@everywhere
def test_a_client_cancels(world: World) -> None:
    begun, ended, going = (world.threads.Event() for _ in range(3))
    seen: Any = world.queues.SimpleQueue()

    def answer(requests: Iterator[bytes], context: Any) -> bytes:
        context.add_callback(ended.set)
        assert next(requests) == b"a"
        begun.set()
        # It may seem as if the client had ended the stream, until the loss is known.
        with suppress(grpc.RpcError):
            assert next(requests, None) is None
        assert ended.wait(GUARD_S)
        try:
            next(requests)
        except grpc.RpcError as error:
            seen.put((type(error) is grpc.RpcError, context.is_active()))
            raise
        return b""

    def requests() -> Iterator[bytes]:
        yield b"a"
        assert going.wait(GUARD_S)

    with world.serving({"Collect": collects(answer)}) as (_, port), world.channel(port) as channel:
        call = channel.stream_unary(path("Collect")).future(requests())
        assert begun.wait(GUARD_S)
        assert call.cancel()
        assert ended.wait(GUARD_S)
        assert seen.get(timeout=GUARD_S) == (True, False)
        assert told(call) == (Code.CANCELLED, "Locally cancelled by application!")
        assert state_of(call) == (False, True, True)
        with pytest.raises(grpc.FutureCancelledError):
            call.result()
        with pytest.raises(grpc.FutureCancelledError):
            call.exception()
        going.set()


@everywhere
def test_a_client_that_cancels_an_iteration_gets_nothing_more(world: World) -> None:
    ended, closed = world.threads.Event(), world.threads.Event()

    def answer(request: bytes, context: Any) -> Iterator[bytes]:
        context.add_callback(ended.set)
        try:
            while context.is_active():
                yield request
        finally:
            closed.set()

    with world.serving({"Many": answers(answer)}) as (_, port), world.channel(port) as channel:
        call = channel.unary_stream(path("Many"))(b"a" * 1000)
        assert next(call) == b"a" * 1000
        assert call.cancel()
        assert error_of(lambda: next(call)) is call
        assert call.code() is Code.CANCELLED
        assert ended.wait(GUARD_S)
        assert closed.wait(GUARD_S)
        assert call.cancel() is False


@everywhere
def test_a_future_that_is_cancelled_calls_back(world: World) -> None:
    may = world.threads.Event()

    def answer(request: bytes, _: Any) -> bytes:
        assert may.wait(GUARD_S)
        return request

    with world.serving({"One": unary(answer)}) as (_, port), world.channel(port) as channel:
        future = channel.unary_unary(path("One")).future(b"")
        told: Any = world.queues.SimpleQueue()
        future.add_done_callback(told.put)
        assert future.cancel()
        assert told.get(timeout=GUARD_S) is future
        assert future.code() is Code.CANCELLED
        with pytest.raises(grpc.FutureCancelledError):
            future.result()
        may.set()


@everywhere
def test_a_server_cancels(world: World) -> None:
    def answer(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield next(requests)
        context.add_callback(ended.set)
        context.cancel()
        assert ended.wait(GUARD_S)
        with pytest.raises(grpc.RpcError):
            next(requests)
        seen.append(context.is_active())

    may, ended = world.threads.Event(), world.threads.Event()
    seen: list[bool] = []

    def requests() -> Iterator[bytes]:
        yield b"a"
        assert may.wait(GUARD_S)

    with world.serving({"Both": both_ways(answer)}) as (_, port), world.channel(port) as channel:
        call = channel.stream_stream(path("Both"))(requests())
        error = error_of(lambda: list(call))
        assert error.code() is Code.CANCELLED
        assert not call.cancelled()
        may.set()
    assert seen == [False]


@everywhere
def test_answers_go_on_after_the_last_request(world: World) -> None:
    def answer(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        seen = list(requests)
        with pytest.raises(StopIteration):
            next(requests)
        yield from seen
        yield b"end"

    with world.serving({"Both": both_ways(answer)}) as (_, port), world.channel(port) as channel:
        call = channel.stream_stream(path("Both"))(iter((b"a", b"b")))
        assert list(call) == [b"a", b"b", b"end"]


@everywhere
def test_a_server_that_ends_early_ends_the_call(world: World) -> None:
    may, asked = world.threads.Event(), []

    def requests() -> Iterator[bytes]:
        asked.append(1)
        yield b"a"
        asked.append(2)
        assert may.wait(GUARD_S)
        yield b"b"
        asked.append(3)
        yield b"c"

    handlers = {
        "Both": both_ways(lambda requests, _: iter((next(requests),))),
        "Collect": collects(lambda requests, _: next(requests)),
    }
    with world.serving(handlers) as (_, port), world.channel(port) as channel:
        assert list(channel.stream_stream(path("Both"))(requests())) == [b"a"]
        may.set()
        world.clocks.sleep(0.05)
        # The second one was asked for, perhaps; nobody asks again once it is there.
        assert 3 not in asked
        assert channel.stream_unary(path("Collect"))(iter((b"a", b"b"))) == b"a"


@everywhere
def test_who_reads_requests_learns_of_the_end_of_the_call(world: World) -> None:
    may, seen = world.threads.Event(), world.queues.SimpleQueue()

    def answer(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        first = next(requests)
        world.start(lambda: seen.put([next(requests, "end"), context.is_active(), next(requests, "end")]))
        yield first
        if first == b"refuse":
            context.abort(Code.ABORTED, "enough")

    def requests(first: bytes) -> Iterator[bytes]:
        yield first
        assert may.wait(GUARD_S)

    with world.serving({"Both": both_ways(answer)}) as (_, port), world.channel(port) as channel:
        for first in (b"a", b"refuse"):
            call = channel.stream_stream(path("Both"))(requests(first))
            assert next(call) == first
            assert call.code() is (Code.OK if first == b"a" else Code.ABORTED)
            assert seen.get(timeout=GUARD_S) == ["end", False, "end"]
        may.set()


@everywhere
def test_requests_that_fail_end_the_call(world: World) -> None:
    begun, ended = world.threads.Event(), world.threads.Event()

    def answer(requests: Iterator[bytes], context: Any) -> bytes:
        context.add_callback(ended.set)
        assert next(requests) == b"a"
        begun.set()
        return b"".join(requests)

    def requests() -> Iterator[bytes]:
        yield b"a"
        assert begun.wait(GUARD_S)
        raise ValueError("broken")

    with world.serving({"Collect": collects(answer)}) as (_, port), world.channel(port) as channel:
        error = error_of(lambda: channel.stream_unary(path("Collect"))(requests()))
        assert told(error) == (Code.UNKNOWN, "Exception iterating requests!")
        assert ended.wait(GUARD_S)


@everywhere
def test_messages_have_a_largest_size(world: World) -> None:
    handlers = {"One": unary(lambda request, _: request), "Many": answers(lambda request, _: iter((b"x" * 2000,)))}
    limited = (("grpc.max_receive_message_length", 1000),)
    sending = (("grpc.max_send_message_length", 1000),)
    with world.serving(handlers, options=limited) as (_, port), world.channel(port) as channel:
        one = channel.unary_unary(path("One"))
        assert one(b"a" * 1000) == b"a" * 1000
        error = error_of(lambda: one(b"a" * 1001))
        assert error.code() is Code.RESOURCE_EXHAUSTED
        assert one(b"a") == b"a"
    with world.serving(handlers) as (_, port):
        with world.channel(port, limited) as channel:
            error = error_of(lambda: list(channel.unary_stream(path("Many"))(b"")))
            assert error.code() is Code.RESOURCE_EXHAUSTED
            assert "2000 vs. 1000" in error.details()
        with world.channel(port, sending) as channel:
            error = error_of(lambda: channel.unary_unary(path("One"))(b"a" * 1001))
            assert error.code() is Code.RESOURCE_EXHAUSTED
            assert "1001 vs. 1000" in error.details()


@everywhere
def test_who_does_not_read_holds_up_who_sends(world: World) -> None:
    sent, may = [0], world.threads.Event()
    size, count = 100_000, 200

    def requests() -> Iterator[bytes]:
        for _ in range(count):
            sent[0] += 1
            yield b"x" * size

    def answer(requests: Iterator[bytes], _: Any) -> bytes:
        assert may.wait(GUARD_S)
        return b"%d" % sum(map(len, requests))

    with world.serving({"Collect": collects(answer)}) as (_, port), world.channel(port) as channel:
        future = channel.stream_unary(path("Collect")).future(requests())
        world.until(lambda: sent[0] > 1)
        before = -1
        while before != sent[0]:
            before = sent[0]
            world.clocks.sleep(0.1)
        assert before < count
        may.set()
        assert future.result() == b"%d" % (size * count)
