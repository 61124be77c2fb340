"""Handlers of calls made anew around others: how the checks before a call are put there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import grpc

from taihu.core.system.pools import ThreadPoolExecutor

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

Answer = Callable[..., Any]
"""The behaviour of a handler: it takes a request, or an iterator of them, and the context."""

_MAKERS: Final[Mapping[tuple[bool, bool], Callable[..., Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def behaviour_of(handler: Handler) -> Answer:
    """The behaviour of `handler`, whichever of its four attributes that is."""
    if handler.request_streaming:
        answer: Any = handler.stream_stream if handler.response_streaming else handler.stream_unary
    else:
        answer = handler.unary_stream if handler.response_streaming else handler.unary_unary
    found: Answer = answer
    return found


def answered_by(
    handler: Handler,
    answer: Answer,
    *,
    request_streaming: bool | None = None,
    request_deserializer: Callable[[bytes], Any] | None = None,
    threads: ThreadPoolExecutor | None = None,
) -> Handler:
    """A handler like `handler` that answers by `answer`.

    Args:
        handler: whose serializer, and kind of response, the new one has.
        answer: what answers.
        request_streaming: whether it takes an iterator of requests; by default as before.
        request_deserializer: what makes requests of bytes; by default they stay bytes.
        threads: run it; by default those of what answered before.
    """
    streaming = handler.request_streaming if request_streaming is None else request_streaming
    # gRPC finds the threads of a call among the attributes of what answers it.
    behaviour: Any = wraps(behaviour_of(handler), assigned=())(answer)
    if threads is not None:
        behaviour.experimental_thread_pool = threads
    make = _MAKERS[bool(streaming), bool(handler.response_streaming)]
    made: Handler = make(behaviour, request_deserializer, handler.response_serializer)
    return made
