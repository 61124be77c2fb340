"""Channels of gRPC in memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Self

import grpc
from typing_extensions import override

from taihu.explore.network.calls import DEFAULT_MOST_BYTES, Method, address_of, metadata_of, serialized
from taihu.explore.network.client_call import ClientCall
from taihu.explore.network.network import Network
from taihu.explore.network.subchannel import Subchannel
from taihu.explore.scheduler import RUNNING

__all__ = ["Channel", "insecure_channel"]

_LOG: Final = logging.getLogger(__name__)

Serialize = Callable[[Any], bytes] | None
Deserialize = Callable[[bytes], Any] | None


class Channel(grpc.Channel):
    """A channel of the running task's process to `host:port`.

    Args:
        target: the address.
        options: their names and values, of which some are looked at.
    """

    def __init__(self, target: str, options: Iterable[tuple[str, Any]]) -> None:
        scheduler = RUNNING()
        self.process = scheduler.current.process
        known = dict(options)
        self.most_sent_bytes: int = known.get("grpc.max_send_message_length", -1)
        self.most_received_bytes: int = known.get("grpc.max_receive_message_length", DEFAULT_MOST_BYTES)
        host, port = address_of(target)
        self._subchannel = Subchannel(scheduler.find(Network), self.process, host, port, known)
        self._calls: dict[ClientCall, None] = {}
        self._callbacks: deque[Callable[[], object]] = deque()
        self._calls_back = False
        self._is_closed = False

    def begin(self, call: ClientCall) -> None:
        """Have `call` go out.

        Raises:
            ValueError: the channel is closed.
        """
        if self._is_closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        if not call.done():
            self._calls[call] = None
            self._subchannel.begin(call)

    def forget(self, call: ClientCall) -> None:
        """`call` has ended."""
        self._calls.pop(call, None)
        self._subchannel.dismiss(call)

    def call_back(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Have `callbacks` called, by the one thread that a channel has for that."""
        self._callbacks.extend(callbacks)
        if not self._calls_back:
            self._calls_back = True
            RUNNING().add(self._call_all_back, "grpc callbacks", self.process)

    def _call_all_back(self) -> None:
        while self._callbacks:
            try:
                self._callbacks.popleft()()
            except Exception:
                _LOG.exception("Exception in callback")
        self._calls_back = False

    @override
    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for call in list(self._calls):
            call.end_with_channel()
        self._subchannel.close()
        RUNNING().point("close a channel")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not RUNNING().is_over:
            self.close()

    @override
    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        raise NotImplementedError("nobody is told of a simulated channel's connectivity")

    @override
    def unsubscribe(self, callback: Any) -> None:
        raise NotImplementedError("nobody is told of a simulated channel's connectivity")

    @override
    def unary_unary(
        self,
        method: str,
        request_serializer: Serialize = None,
        response_deserializer: Deserialize = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _OneToOne(self, method, request_serializer, response_deserializer)

    @override
    def unary_stream(
        self,
        method: str,
        request_serializer: Serialize = None,
        response_deserializer: Deserialize = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _OneToMany(self, method, request_serializer, response_deserializer)

    @override
    def stream_unary(
        self,
        method: str,
        request_serializer: Serialize = None,
        response_deserializer: Deserialize = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _ManyToOne(self, method, request_serializer, response_deserializer)

    @override
    def stream_stream(
        self,
        method: str,
        request_serializer: Serialize = None,
        response_deserializer: Deserialize = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _ManyToMany(self, method, request_serializer, response_deserializer)


class _Callable:
    """A method of a service that can be called."""

    has_one_answer: bool

    def __init__(self, channel: Channel, path: str, serialize: Serialize, deserialize: Deserialize) -> None:
        self._channel = channel
        self._method = Method(path)
        self._serialize = serialize
        self._deserialize = deserialize

    def _call(self, timeout: float | None, metadata: Iterable[Any] | None, waits: bool | None) -> ClientCall:
        return ClientCall(
            self._channel,
            self._method,
            self._deserialize,
            timeout,
            metadata_of(metadata),
            waits_for_ready=bool(waits),
            has_one_answer=self.has_one_answer,
        )

    def _ask(
        self, request: Any, timeout: float | None, metadata: Iterable[Any] | None, waits: bool | None
    ) -> ClientCall:
        """Call with one request."""
        call = self._call(timeout, metadata, waits)
        message = serialized(request, self._serialize)
        if message is None:
            call.abort(grpc.StatusCode.INTERNAL, "Exception serializing request!")
        else:
            call.send_only(message)
        self._channel.begin(call)
        RUNNING().point(self._method.sending)
        return call

    def _ask_all(
        self, requests: Iterator[Any], timeout: float | None, metadata: Iterable[Any] | None, waits: bool | None
    ) -> ClientCall:
        """Call with a stream of requests."""
        call = self._call(timeout, metadata, waits)
        self._channel.begin(call)
        scheduler = RUNNING()
        send = partial(call.send_all, iter(requests), partial(serialized, serialize=self._serialize))
        scheduler.add(send, f"grpc requests of {self._method.name}")
        scheduler.point(self._method.sending)
        return call


class _OneToOne(_Callable, grpc.UnaryUnaryMultiCallable):  # type: ignore[type-arg]  # no generic class at run time
    has_one_answer = True

    @override
    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Iterable[Any] | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        return self._ask(request, timeout, metadata, wait_for_ready).outcome()

    @override
    def with_call(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Iterable[Any] | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        call = self._ask(request, timeout, metadata, wait_for_ready)
        return call.outcome(), call

    @override
    def future(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Iterable[Any] | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        return self._ask(request, timeout, metadata, wait_for_ready)


class _OneToMany(_Callable, grpc.UnaryStreamMultiCallable):  # type: ignore[type-arg]  # as above
    has_one_answer = False

    @override
    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Iterable[Any] | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        return self._ask(request, timeout, metadata, wait_for_ready)


class _ManyToOne(_Callable, grpc.StreamUnaryMultiCallable):  # type: ignore[type-arg]  # as above
    has_one_answer = True

    @override
    def __call__(
        self,
        request_iterator: Iterator[Any],
        timeout: float | None = None,
        metadata: Iterable[Any] | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        return self._ask_all(request_iterator, timeout, metadata, wait_for_ready).outcome()

    @override
    def with_call(
        self,
        request_iterator: Iterator[Any],
        timeout: float | None = None,
        metadata: Iterable[Any] | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        call = self._ask_all(request_iterator, timeout, metadata, wait_for_ready)
        return call.outcome(), call

    @override
    def future(
        self,
        request_iterator: Iterator[Any],
        timeout: float | None = None,
        metadata: Iterable[Any] | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        return self._ask_all(request_iterator, timeout, metadata, wait_for_ready)


class _ManyToMany(_Callable, grpc.StreamStreamMultiCallable):  # type: ignore[type-arg]  # as above
    has_one_answer = False

    @override
    def __call__(
        self,
        request_iterator: Iterator[Any],
        timeout: float | None = None,
        metadata: Iterable[Any] | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        return self._ask_all(request_iterator, timeout, metadata, wait_for_ready)


def insecure_channel(
    target: str, options: Iterable[tuple[str, Any]] | None = None, compression: Any = None
) -> Channel:
    """`grpc.insecure_channel`."""
    return Channel(target, options or ())
