"""A server's answers, changed on their way to a worker: a proxy between the two, over real gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import grpc

from support.frames import read
from taihu.core.wire.frames.headers import Frame
from taihu.core.wire.serving.server import RpcServer

__all__ = ["AnswerProxy"]

_SERVICE = "taihu.v1.ParameterServerService"


class AnswerProxy:
    """Passes all calls that a worker without connections of its own makes on to the server at `address`.

    `change` makes the message that arrives of each answer. A context manager.
    """

    def __init__(self, address: str, change: Callable[[Frame], bytes]) -> None:
        self._change = change
        self._channel = grpc.insecure_channel(address)
        self._rpc = RpcServer.create(threads=8)
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Initialize": grpc.stream_unary_rpc_method_handler(self._initialize),
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
        }
        self._rpc.grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        self.address = f"127.0.0.1:{self._rpc.listen('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._rpc.start((_SERVICE,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        self._rpc.stop(0.0)

    def _initialize(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        call: grpc.StreamUnaryMultiCallable[bytes, bytes] = self._channel.stream_unary(f"/{_SERVICE}/Initialize")
        return call(requests, metadata=_metadata(context), timeout=120)

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{_SERVICE}/Exchange")
        for message in call(requests, metadata=_metadata(context), timeout=120):
            yield self._change(read(message))


def _metadata(context: grpc.ServicerContext) -> tuple[tuple[str, str | bytes], ...]:
    sent = context.invocation_metadata()
    return tuple((key, value) for key, value in sent if not key.startswith(("grpc-", "user-agent")))
