"""Calls that say nothing: they wait in room of their own, so that they keep no thread from those that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from typing_extensions import override

from taihu.core.base.errors import FrameError
from taihu.core.system.pools import ThreadPoolExecutor
from taihu.core.wire.base.room import Room
from taihu.core.wire.base.status import abort
from taihu.core.wire.serving.handlers import answered_by, behaviour_of

# Its streams are opened by members, which say who they are before the first message.
_OWN: Final = "/taihu."

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


@dataclass(frozen=True)
class SilenceInterceptor(grpc.ServerInterceptor):
    """Gives calls with one request to `threads` of their own, and bounds how many wait for it and how long.

    gRPC gives a call its thread before its request is there. A stream that is none of taihu's, as reflection's is,
    keeps its place in `room` as long as it lasts.
    """

    room: Room
    threads: ThreadPoolExecutor

    @override
    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Handler | None], details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = continuation(details)
        if handler is None:
            return None
        if handler.request_streaming:
            return handler if details.method.startswith(_OWN) else self._bounded(handler)
        return self._asked(handler)

    def _asked(self, handler: Handler) -> Handler:
        """A call with one request as a stream of one, whose wait for it can be ended."""
        answer = behaviour_of(handler)

        def answer_one(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self.room.place(context.cancel):
                request = next(requests, None)
            if request is None:
                abort(context, FrameError("a call without its request"))
            return answer(request, context)

        return answered_by(
            handler,
            answer_one,
            request_streaming=True,
            request_deserializer=handler.request_deserializer,
            threads=None if handler.response_streaming else self.threads,
        )

    def _bounded(self, handler: Handler) -> Handler:
        answer = behaviour_of(handler)

        def answer_all(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self.room.place(context.cancel):
                return answer(requests, context)

        def answers(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self.room.place(context.cancel):
                yield from answer(requests, context)

        return answered_by(
            handler,
            answers if handler.response_streaming else answer_all,
            request_deserializer=handler.request_deserializer,
        )
