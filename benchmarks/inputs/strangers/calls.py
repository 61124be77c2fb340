"""Calls of strangers by gRPC's own client: requests that are none, too large, too many headers, no such method."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from benchmarks.inputs.strangers.target import Target
from taihu.protos import coordinator_pb2, parameter_server_pb2

__all__ = ["METHODS", "Statuses", "broken", "metadata", "streams", "swollen", "too_large", "undecodable", "unknown"]

Statuses = Counter[str]
"""The number of calls by the status, or other end, that they met with."""

_AT_ONCE: Final = 50
_A_CHANNEL: Final = 500
_TIMEOUT_S: Final = 30.0
_COORDINATOR: Final = "/taihu.v1.CoordinatorService"
_HEALTH: Final = "/grpc.health.v1.Health"
# A length without its bytes, a group that does not end, a type that there is not, a number that does not end.
_BROKEN: Final = (b"\x0a\x7f", b"\x0b", b"\x0f", b"\xff" * 11)
_MORE_BYTES: Final = (0, 0, 100, 5_000, 20_000)


def _unary_methods() -> Iterator[str]:
    for file in (coordinator_pb2, parameter_server_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                if not method.client_streaming and not method.server_streaming:
                    yield f"/{service.full_name}/{method.name}"
    yield f"{_HEALTH}/Check"


METHODS: Final = tuple(_unary_methods())
"""The methods of server 0 that have one request and one response."""


def broken(number: int) -> bytes:
    """Bytes that are no message, of 1 to 20,011; equal ones for equal numbers."""
    generator = random.Random(number)  # noqa: S311
    # What follows a length is as long as it says, unless nothing does.
    start = generator.choice(_BROKEN)
    return start if start == _BROKEN[0] else start + b"\x0b" * generator.choice(_MORE_BYTES)


def undecodable(target: Target, count: int) -> Statuses:
    """Requests to all methods that are no protobuf."""
    return _unary(target, count, lambda number: (METHODS[number % len(METHODS)], broken(number)))


def unknown(target: Target, count: int) -> Statuses:
    """Methods that there are not."""
    return _unary(target, count, lambda number: (f"/taihu.v1.{number}/{number}", broken(number)))


def too_large(target: Target, count: int) -> Statuses:
    """Requests of 6 MiB."""
    content = bytes(6 << 20)
    return _unary(target, count, lambda number: (METHODS[number % len(METHODS)], content), at_once=2)


def swollen(target: Target, count: int) -> Statuses:
    """Requests of 4 MB that are protobuf, with two million layers in them."""
    layers = b"\x0a\x00" * 2_000_000
    # Field 5, a layout, of 4,000,000 bytes.
    request = b"\x2a\x80\x92\xf4\x01" + layers
    return _unary(target, count, lambda _: (f"{_COORDINATOR}/Join", request), at_once=4)


def metadata(target: Target, count: int) -> Statuses:
    """Calls with 30 KB of headers."""
    headers = tuple((f"x-{number}", "x" * 300) for number in range(100))
    return _unary(target, count, lambda _: (METHODS[0], b""), headers=headers)


def streams(target: Target, count: int) -> Statuses:
    """Streams of a good message and one that is none, of none alone, and of nothing."""
    statuses: Statuses = Counter()
    ways = (
        (f"{_COORDINATOR}/GetStatus", (b"", broken(0))),
        (f"{_HEALTH}/Watch", (broken(1),)),
        (f"{_COORDINATOR}/Heartbeat", ()),
        ("/taihu.v1.ParameterServerService/Initialize", (broken(2), broken(3))),
        ("/taihu.v1.ParameterServerService/Exchange", (broken(4), broken(5))),
        ("/taihu.v1.ParameterServerService/Fetch", (broken(6), broken(7))),
    )
    with target.channel() as channel:
        for number in range(count):
            method, messages = ways[number % len(ways)]
            call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
            answers = call(iter(messages), timeout=_TIMEOUT_S)
            statuses[_end(lambda: list(answers))] += 1  # noqa: B023 - called at once
    return statuses


def _unary(
    target: Target,
    count: int,
    request: Callable[[int], tuple[str, bytes]],
    *,
    headers: tuple[tuple[str, str], ...] = (),
    at_once: int = _AT_ONCE,
) -> Statuses:
    """`count` calls of the method and with the bytes of `request(number)`, a channel for some hundred of them."""
    statuses: Statuses = Counter()
    for start in range(0, count, _A_CHANNEL):
        stop = min(count, start + _A_CHANNEL)
        with target.channel() as channel:
            for first in range(start, stop, at_once):
                asked = [request(number) for number in range(first, min(stop, first + at_once))]
                calls = [_begun(channel, method, content, headers) for method, content in asked]
                statuses.update(_end(call.result) for call in calls)
    return statuses


def _begun(channel: grpc.Channel, method: str, content: bytes, headers: tuple[tuple[str, str], ...]) -> Any:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    return call.future(content, timeout=_TIMEOUT_S, metadata=headers)


def _end(wait: Callable[[], object]) -> str:
    try:
        wait()
    except grpc.RpcError as error:
        return str(error.code().name) if isinstance(error, grpc.Call) else type(error).__name__
    return "OK"
