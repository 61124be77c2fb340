"""Requests of calls: taken as bytes, and parsed where the call is answered.

gRPC parses a request before anything answers, and where that fails it ends the call itself. Its Python server then
ends it once more, which cannot be sent, and waits for that for ever: the call is never freed, nor its place among the
streams of its connection, nor 20 KB. So bytes come through gRPC as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from typing_extensions import override

from taihu.core.base.errors import FrameError
from taihu.core.process.programs.preparation import give_back_freed_memory
from taihu.core.security.security import Refusals
from taihu.core.system.threads import Lock
from taihu.core.wire.base.status import abort
from taihu.core.wire.serving.handlers import answered_by, behaviour_of
from taihu.core.wire.serving.refusal_log import RefusalLog

MOST_PARTS: Final = 1 << 17
"""The most messages inside of one request: layers, tensors, measurements."""
_LARGE_BYTES: Final = 1 << 16

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Parse = Callable[[bytes], Any]


def parse(read: Parse, message: bytes) -> Any:
    """The request that `read`, a deserializer, makes of `message`.

    Raises:
        FrameError: it is none, or consists of more than `MOST_PARTS` messages.
    """
    name = getattr(getattr(read, "__self__", None), "__name__", "request")
    try:
        request = read(message)
    except DecodeError:
        raise FrameError(f"expected a {name}, got {len(message)} bytes that are none; check the address") from None
    if isinstance(request, Message) and not _within(request, MOST_PARTS):
        del request
        give_back_freed_memory()
        raise FrameError(f"{name}: more than {MOST_PARTS} messages inside of one, in {len(message)} bytes")
    return request


def _within(message: Message, most: int) -> bool:
    """Whether `message` consists of at most `most` messages, itself included."""
    waiting, found = [message], 1
    while waiting:
        for descriptor, value in waiting.pop().ListFields():
            inner = _messages(descriptor, value)
            found += len(inner)
            if found > most:
                return False
            waiting.extend(inner)
    return True


def _messages(descriptor: FieldDescriptor, value: Any) -> Any:
    """The messages of a field; none where it holds numbers or text, as the entries of our maps do."""
    if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
        return ()
    return value if descriptor.is_repeated else (value,)


@dataclass(frozen=True)
class RequestInterceptor(grpc.ServerInterceptor):
    """Has requests of all services, those of gRPC's own packages too, parsed by the thread that answers the call.

    What cannot be parsed ends its call with INVALID_ARGUMENT, is counted in `refusals` and told to `log`. Large
    requests are parsed one at a time: in memory the smallest messages take fifty times their bytes.
    """

    refusals: Refusals
    log: RefusalLog
    _one: Lock = field(default_factory=Lock)

    @override
    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Handler | None], details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler, method = continuation(details), details.method
        if handler is None or (read := handler.request_deserializer) is None:
            return handler
        answer = behaviour_of(handler)

        def parsed(message: bytes, context: grpc.ServicerContext) -> Any:
            return self._parse(method, read, message, context)

        if not handler.request_streaming:
            return answered_by(handler, lambda message, context: answer(parsed(message, context), context))

        def answer_all(messages: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            return answer((parsed(message, context) for message in messages), context)

        return answered_by(handler, answer_all)

    def _parse(self, method: str, read: Parse, message: bytes, context: grpc.ServicerContext) -> Any:
        try:
            with self._one if len(message) > _LARGE_BYTES else nullcontext():
                return parse(read, message)
        except FrameError as error:
            self.refusals.add(method, "request")
            self.log.tell("call refused", "request", method=method, peer=context.peer(), reason=str(error))
            abort(context, error)
