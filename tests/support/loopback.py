"""One method over real gRPC on a free port of this machine, whose behaviour a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from taihu.core.wire.serving.channel import open_channel
from taihu.core.wire.serving.server import RpcServer

__all__ = ["Loopback", "loopback_method"]

_SERVICE = "taihu.test.LoopbackService"


def loopback_method(channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    """The method, over a channel of the test's own."""
    return channel.unary_unary(f"/{_SERVICE}/Call", bytes, bytes)


class Loopback:
    """A server with the method that `behave` is, and a channel to it; a context manager."""

    def __init__(self) -> None:
        self.behave: Callable[[bytes, grpc.ServicerContext], bytes] = lambda request, _: request
        self._rpc = RpcServer.create(threads=4)
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Call": grpc.unary_unary_rpc_method_handler(self._behave)
        }
        self._rpc.grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        self.address = f"127.0.0.1:{self._rpc.listen('127.0.0.1:0')}"
        self._channel = open_channel(self.address)
        self._method = loopback_method(self._channel)

    def __enter__(self) -> Self:
        self._rpc.start((_SERVICE,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        self.stop()

    def stop(self) -> None:
        """End the server, and with it the calls in progress."""
        self._rpc.stop(0.0)

    def call(self, timeout_s: float, request: bytes = b"") -> bytes:
        """Call the method; raises grpc.RpcError."""
        return self._method(request, timeout=timeout_s)

    def _behave(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return self.behave(request, context)

    def failed_call(self, behave: Callable[[bytes, grpc.ServicerContext], bytes]) -> grpc.RpcError:
        """The error that a call of `behave` ends with."""
        self.behave = behave
        try:
            self.call(30)
        except grpc.RpcError as error:
            return error
        raise AssertionError("the call did not fail")
