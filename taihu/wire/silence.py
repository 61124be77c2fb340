"""Calls that say nothing: they wait in room of their own, so that they keep no thread from those that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from typing_extensions import override

from taihu.errors import FrameError
from taihu.wire.room import Room
from taihu.wire.status import abort

__all__ = ["SilenceInterceptor"]

# Its streams are opened by members, which say who they are before the first message.
_OWN: Final = "/taihu."

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


@dataclass(frozen=True)
class SilenceInterceptor(grpc.ServerInterceptor):
    """Gives calls with one request to `threads` of their own, and bounds how many wait for it and how long.

    gRPC gives a call its thread before its request is there. A stream that is none of taihu's, as reflection's is,
    keeps its place in `room` as long as it lasts. Who watches the health waits in no thread, but for its request in
    one of `watchers`.
    """

    room: Room
    threads: ThreadPoolExecutor
    watchers: ThreadPoolExecutor

    @override
    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Handler | None], details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = continuation(details)
        if handler is None:
            return None
        if handler.request_streaming:
            return handler if details.method.startswith(_OWN) else self._bounded(handler)
        behaviour: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary
        if getattr(behaviour, "experimental_non_blocking", False):
            return self._watching(handler, behaviour)
        return self._asked(handler, behaviour)

    def _asked(self, handler: Handler, behaviour: Any) -> Handler:
        """A call with one request as a stream of one, whose wait for it can be ended."""

        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self.room.place(context.cancel):
                request = next(requests, None)
            if request is None:
                abort(context, FrameError("a call without its request"))
            return behaviour(request, context)

        if handler.response_streaming:
            return _made(grpc.stream_stream_rpc_method_handler, answer, handler)
        answer.experimental_thread_pool = self.threads  # type: ignore[attr-defined]
        return _made(grpc.stream_unary_rpc_method_handler, answer, handler)

    def _watching(self, handler: Handler, behaviour: Any) -> Handler:
        def watch(request: Any, context: grpc.ServicerContext, send: Callable[[Any], None]) -> Any:
            return behaviour(request, context, send)

        watch.experimental_non_blocking = True  # type: ignore[attr-defined]
        watch.experimental_thread_pool = self.watchers  # type: ignore[attr-defined]
        return _made(grpc.unary_stream_rpc_method_handler, watch, handler)

    def _bounded(self, handler: Handler) -> Handler:
        if not handler.response_streaming:
            behaviour: Any = handler.stream_unary

            def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
                with self.room.place(context.cancel):
                    return behaviour(requests, context)

            return _made(grpc.stream_unary_rpc_method_handler, answer, handler)
        stream: Any = handler.stream_stream

        def answers(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self.room.place(context.cancel):
                yield from stream(requests, context)

        return _made(grpc.stream_stream_rpc_method_handler, answers, handler)


def _made(make: Callable[..., Handler], behaviour: Callable[..., Any], handler: Handler) -> Handler:
    return make(behaviour, handler.request_deserializer, handler.response_serializer)
