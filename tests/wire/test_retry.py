"""Calls that are made again: over real gRPC, with time that the test moves."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loopback import Loopback, loopback_method

from taihu.core.base.errors import (
    ConfigError,
    FrameError,
    ModelError,
    PeerUnreachableError,
    RefusedError,
    RunError,
    StaleError,
    TaihuError,
)
from taihu.core.wire.base.retry import backoff_seconds, call_until_reachable
from taihu.core.wire.base.status import abort
from taihu.core.wire.serving.channel import open_channel

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
AWAY = [UNAVAILABLE, grpc.StatusCode.CANCELLED]
OTHERS = [code for code in grpc.StatusCode if code not in {grpc.StatusCode.OK, *AWAY}]


class MovedClock:
    """Time that passes when somebody sleeps, or when the test says so."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.time += seconds


class Peer:
    """Fails `failures` times with a status, then answers; every call takes `call_s` and is recorded."""

    def __init__(
        self, loopback: Loopback, clock: MovedClock, *, failures: int, code: grpc.StatusCode, call_s: float = 0.0
    ) -> None:
        self.remaining: list[float] = []
        self._loopback = loopback
        self._clock = clock
        self._failures = failures
        self._code = code
        self._call_s = call_s

    def call(self, remaining: float) -> bytes:
        self.remaining.append(remaining)
        self._clock.time += self._call_s
        self._loopback.behave = self._behave
        return self._loopback.call(30, b"hello")

    def _behave(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if len(self.remaining) <= self._failures:
            context.abort(self._code, "not now")
        return request


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with Loopback() as running:
        yield running


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


def reach(call: Callable[[float], bytes], clock: MovedClock, timeout_s: float) -> bytes:
    return call_until_reachable(call, peer="server 3 at 10.0.0.3:7070", timeout_s=timeout_s, clock=clock)


def test_delays_double_from_50_ms_to_2_s() -> None:
    delays = list(islice(backoff_seconds(), 2000))
    assert delays[:8] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert set(delays[6:]) == {2.0}


@pytest.mark.parametrize("code", AWAY, ids=lambda code: code.name)
@pytest.mark.parametrize("failures", [0, 1, 7])
def test_a_peer_that_comes_up_in_time_is_reached(
    loopback: Loopback, clock: MovedClock, failures: int, code: grpc.StatusCode
) -> None:
    peer = Peer(loopback, clock, failures=failures, code=code)
    assert reach(peer.call, clock, 60) == b"hello"
    assert clock.slept == list(islice(backoff_seconds(), failures))
    assert peer.remaining == pytest.approx([60 - sum(clock.slept[:i]) for i in range(failures + 1)])


def test_who_is_not_waited_for_any_more_is_not_asked_again(loopback: Loopback, clock: MovedClock) -> None:
    peer = Peer(loopback, clock, failures=10**9, code=UNAVAILABLE)
    with pytest.raises(PeerUnreachableError, match="server 3: nobody waits for its answer any more"):
        call_until_reachable(
            peer.call, peer="server 3", timeout_s=60, clock=clock, gives_up=lambda: len(peer.remaining) == 3
        )
    assert len(peer.remaining) == 3


@settings(deadline=None, max_examples=40)
@given(timeout_s=st.floats(0.01, 30), call_s=st.just(0.0) | st.floats(0.001, 3))
def test_a_peer_that_stays_away_is_named_with_the_time_tried(
    loopback: Loopback, timeout_s: float, call_s: float
) -> None:
    clock = MovedClock()
    peer = Peer(loopback, clock, failures=10**9, code=UNAVAILABLE, call_s=call_s)
    with pytest.raises(PeerUnreachableError, match=r"server 3 at 10\.0\.0\.3:7070") as caught:
        reach(peer.call, clock, timeout_s)
    assert f"within {timeout_s:g} s" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(peer.remaining) > 0
    assert min(peer.remaining) > 0
    assert timeout_s <= clock.time + 1e-9 <= timeout_s + call_s + 1e-6


@pytest.mark.parametrize(("attempt_s", "attempts"), [(60.0, 1), (20.0, 3), (7.0, 8)])
def test_an_answer_that_does_not_come_is_asked_for_again_as_long_as_there_is_time(
    loopback: Loopback, clock: MovedClock, attempt_s: float, attempts: int
) -> None:
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    peer = Peer(loopback, clock, failures=10**9, code=late, call_s=attempt_s)
    with pytest.raises(PeerUnreachableError, match="within 60 s"):
        call_until_reachable(peer.call, peer="server 3", timeout_s=60, attempt_s=attempt_s, clock=clock)
    assert len(peer.remaining) == attempts
    assert max(peer.remaining) == attempt_s
    assert sum(peer.remaining) <= 60


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_without_time_nothing_is_called(loopback: Loopback, clock: MovedClock, timeout_s: float) -> None:
    peer = Peer(loopback, clock, failures=0, code=UNAVAILABLE)
    with pytest.raises(PeerUnreachableError, match="within"):
        reach(peer.call, clock, timeout_s)
    assert (peer.remaining, clock.slept) == ([], [])


@pytest.mark.parametrize("code", OTHERS, ids=lambda code: code.name)
def test_another_status_is_not_tried_again(loopback: Loopback, clock: MovedClock, code: grpc.StatusCode) -> None:
    peer = Peer(loopback, clock, failures=1, code=code)
    expected = {
        "INVALID_ARGUMENT": FrameError,
        "FAILED_PRECONDITION": StaleError,
        "UNIMPLEMENTED": ConfigError,
        "UNAUTHENTICATED": RefusedError,
        "PERMISSION_DENIED": RefusedError,
    }
    with pytest.raises(TaihuError) as caught:
        reach(peer.call, clock, 60)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        assert type(caught.value) is PeerUnreachableError
        assert str(caught.value).startswith("server 3 at 10.0.0.3:7070: no answer within 60 s; check")
    else:
        assert type(caught.value) is expected.get(code.name, RunError)
        remedy = "; what listens there is something else: check the address"
        told = f"server 3 at 10.0.0.3:7070: {code.name}: not now"
        assert str(caught.value) == told + (remedy if code is grpc.StatusCode.UNIMPLEMENTED else "")
    assert len(peer.remaining) == 1
    assert clock.slept == []


@pytest.mark.parametrize(
    "error", [PeerUnreachableError("server 2: no answer within 5 s"), ModelError("conv1 differs")]
)
def test_an_error_that_the_peer_itself_sent_is_final(
    loopback: Loopback, clock: MovedClock, error: PeerUnreachableError | ModelError
) -> None:
    loopback.behave = lambda _, context: abort(context, error)
    with pytest.raises(type(error)) as caught:
        reach(loopback.call, clock, 60)
    assert str(caught.value) == str(error)
    assert clock.slept == []


def test_a_peer_that_ends_while_it_is_asked_is_away(clock: MovedClock) -> None:
    asked, ended = threading.Event(), threading.Event()

    def behave(request: bytes, context: grpc.ServicerContext) -> bytes:
        asked.set()
        ended.wait(120)
        return request

    def end() -> None:
        asked.wait(120)
        peer.stop()

    with Loopback() as peer, ThreadPoolExecutor(1) as pool:
        peer.behave = behave
        ending = pool.submit(end)
        with pytest.raises(PeerUnreachableError, match=r"server 3 at 10\.0\.0\.3:7070: no answer within 5 s"):
            reach(lambda _: peer.call(30, b"hello"), clock, 5)
        ended.set()
        ending.result()


def test_an_address_where_nobody_listens_is_tried_until_the_deadline(clock: MovedClock) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with open_channel(address) as channel:
            method = loopback_method(channel)
            with pytest.raises(PeerUnreachableError, match=r"10\.0\.0\.3:7070: no answer within 10 s"):
                reach(lambda _: method(b"", timeout=120), clock, 10)
    assert clock.time == pytest.approx(10)
    assert clock.slept[:6] == list(islice(backoff_seconds(), 6))


def test_what_is_no_rpc_error_is_not_caught(clock: MovedClock) -> None:
    def call(_: float) -> bytes:
        raise StaleError("another job")

    with pytest.raises(StaleError, match="another job"):
        reach(call, clock, 60)
    assert clock.slept == []


def test_a_name_that_nobody_knows_is_told_at_the_end(clock: MovedClock) -> None:
    with open_channel("nohost.invalid:7070") as channel:
        asked: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/taihu.v1.Nothing/Ask")
        with pytest.raises(PeerUnreachableError) as caught:
            reach(lambda remaining: asked(b"", timeout=60), clock, 3)
    assert str(caught.value).endswith(
        "within 3 s; check the address and that it has been started, or raise cluster.connect_timeout_s; the name "
        "nohost.invalid is not known here: check it, DNS and /etc/hosts"
    )
