"""A gRPC call in memory as its server sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import grpc
from typing_extensions import override

from taihu.explore.network.calls import Metadata, Metadatum, Status, metadata_of, serialized
from taihu.explore.scheduler import RUNNING

if TYPE_CHECKING:
    from taihu.explore.network.client_call import ClientCall
    from taihu.explore.network.server import Transport

__all__ = ["ServerCall"]

_LOG: Final = logging.getLogger(__name__)
_SEEMS_ENDED: Final = 0.3
_NEVER_S: Final = 9.2e9
_AGENT: Final = Metadatum("user-agent", f"grpc-python/{grpc.__version__} (memory)")


class ServerCall(grpc.ServicerContext):
    """A call on the server: the context of its handler, and what handlers answer by.

    Args:
        transport: on which it came.
        call: the client's side.
    """

    def __init__(self, transport: Transport, call: ClientCall) -> None:
        self.method = call.method
        self.metadata = (*call.metadata, _AGENT)
        self._transport = transport
        self._call = call
        self._requests = call.requests
        self._was_cancelled = False
        self._seems_ended = False
        self._has_answered = False
        self._was_aborted = False
        self._has_begun = False
        self._code: grpc.StatusCode | None = None
        self._details: str | None = None
        self._trailing: Metadata = ()
        # None once they have been called.
        self._callbacks: list[Callable[[], object]] | None = []
        # Errors that a handler got because its client had gone: they are nobody's fault.
        self._told: list[Exception] = []
        self._timer: int | None = None
        if call.until_s is not None:
            scheduler = RUNNING()
            self._timer = scheduler.call_at(call.until_s - scheduler.now, self.lost)

    # -- told between tasks

    def lost(self) -> None:
        """The client has cancelled it, or is gone."""
        if self._was_cancelled or self._has_answered:
            return
        self._cancel()

    def _cancel(self) -> None:
        self._was_cancelled = True
        # gRPC tells whoever waits for a request that there are no more, before it tells of the loss, or behind it.
        self._seems_ended = bool(self._requests.waiting) and self._transport.chance.random() < _SEEMS_ENDED
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            RUNNING().call_off(self._timer)
        callbacks, self._callbacks = self._callbacks, None
        self._transport.forget(self, callbacks or ())
        # Whoever waits for the client, or for room, looks again.
        self._requests.waiting.wake()
        self._call.answers.room.wake()

    # -- answering, by the threads of the server

    def reject(self, code: grpc.StatusCode, details: str) -> None:
        """End it without a handler."""
        self._end(Status(code, details, ()))

    def answer(self, handler: Any) -> None:
        """Have `handler` answer it."""
        try:
            if handler.request_streaming:
                argument: Any = _Requests(self, handler.request_deserializer)
            else:
                argument = self._only_request(handler.request_deserializer)
            if argument is None:
                return
            if handler.response_streaming:
                self._answer_all(handler, argument)
            else:
                self._answer_once(handler, argument)
        except Exception:
            _LOG.exception("Exception answering a call")

    def _answer_once(self, handler: Any, argument: Any) -> None:
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
        try:
            response = behaviour(argument, self)
        except Exception as error:
            self._failed("Exception calling application", error)
            return
        message = self._serialized(response, handler)
        if message is not None and self.is_active():
            self._send(message, self._own_status())

    def _answer_all(self, handler: Any, argument: Any) -> None:
        behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
        try:
            responses = behaviour(argument, self)
        except Exception as error:
            self._failed("Exception calling application", error)
            return
        while True:
            try:
                response = next(responses)
            except StopIteration:
                break
            except Exception as error:
                self._failed("Exception iterating responses", error)
                return
            if response is None:
                break
            message = self._serialized(response, handler)
            if message is not None and self.is_active():
                self._send(message, None)
            if not self.is_active():
                return
        if self.is_active():
            self._end(self._own_status())

    def _failed(self, words: str, error: Exception) -> None:
        if self._was_aborted:
            self._end(self._own_status())
        elif error not in self._told:
            details = f"{words}: {error}"
            _LOG.exception(details)
            RUNNING().note_failure(error)
            self._end(self._own_status(grpc.StatusCode.UNKNOWN, details))

    def _own_status(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "") -> Status:
        """The status that the handler has set, or what is given."""
        return Status(self._code or code, details if self._details is None else self._details, self._trailing)

    def _serialized(self, response: Any, handler: Any) -> bytes | None:
        message = serialized(response, handler.response_serializer)
        if message is None:
            self._end(self._own_status(grpc.StatusCode.INTERNAL, "Failed to serialize response!"))
        return message

    def _send(self, message: bytes, last: Status | None) -> None:
        """Send an answer as soon as there is room, and the end of the call with the only one."""
        most = self._transport.most_sent_bytes
        if 0 <= most < len(message):
            self._end(
                Status(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"Sent message larger than max ({len(message)} vs. {most})",
                    (),
                )
            )
            return
        call = self._call
        while self.is_active() and not call.answers.has_room(len(message)):
            call.answers.room.wait()
        if not self.is_active():
            return
        self._begin()
        self._transport.send(partial(call.answered, message))
        if last is not None:
            self._end(last)
        else:
            RUNNING().point(self.method.sending)

    def _begin(self, initial: Metadata = ()) -> None:
        """Send the first metadata, if that has not happened."""
        if not self._has_begun:
            self._has_begun = True
            self._transport.send(partial(self._call.brought, initial))

    def _end(self, status: Status) -> None:
        """Send the end of the call, if its client is there."""
        if self.is_active():
            self._has_answered = True
            self._transport.send(partial(self._call.ended, status))
            self._finish()
            RUNNING().point(self.method.sending)

    # -- requests, by the threads of the server

    def next_request(self, deserialize: Callable[[bytes], Any] | None) -> Any:
        """The next request of a stream.

        Raises:
            StopIteration: there are no more, or so it seems.
            grpc.RpcError: the client has gone.
        """
        RUNNING().point(self.method.receiving)
        requests = self._requests
        while True:
            if self._seems_ended:
                self._seems_ended = False
                raise StopIteration
            if self._was_cancelled:
                raise self._lost_error()
            if self._has_answered:
                raise StopIteration
            if len(requests):
                return self._read(requests.take(), deserialize)
            if requests.has_ended:
                raise StopIteration
            requests.waiting.wait()

    def _only_request(self, deserialize: Callable[[bytes], Any] | None) -> Any:
        """The one request; None where the call ends without."""
        RUNNING().point(self.method.receiving)
        requests = self._requests
        requests.waiting.wait_until(lambda: len(requests) > 0 or requests.has_ended or not self.is_active())
        if not self.is_active():
            return None
        if not len(requests):
            self.reject(grpc.StatusCode.UNIMPLEMENTED, f'"{self.method.path}" requires exactly one request message.')
            return None
        try:
            return self._read(requests.take(), deserialize)
        except grpc.RpcError:
            return None

    def _read(self, message: bytes, deserialize: Callable[[bytes], Any] | None) -> Any:
        most = self._transport.most_received_bytes
        if 0 <= most < len(message):
            code, details = (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"Received message larger than max ({len(message)} vs. {most})",
            )
        else:
            try:
                return message if deserialize is None else deserialize(message)
            except Exception:
                _LOG.exception("Exception deserializing message!")
                code, details = grpc.StatusCode.INTERNAL, "Exception deserializing request!"
        self.reject(code, details)
        raise self._lost_error()

    def _lost_error(self) -> grpc.RpcError:
        """The error that a handler gets because its client has gone."""
        error = grpc.RpcError()
        self._told.append(error)
        return error

    # -- grpc.ServicerContext

    @override
    def is_active(self) -> bool:
        return not (self._was_cancelled or self._has_answered)

    @override
    def time_remaining(self) -> float:
        until_s = self._call.until_s
        return _NEVER_S if until_s is None else RUNNING().seconds_until(until_s)

    @override
    def cancel(self) -> bool:
        return self.cut(Status(grpc.StatusCode.CANCELLED, "CANCELLED", ()))

    def cut(self, status: Status) -> bool:
        """End it as if its client had cancelled it, which is told `status`; whether it went on until now."""
        is_active = self.is_active()
        if is_active:
            self._transport.send(partial(self._call.ended, status))
            self._cancel()
        return is_active

    @override
    def add_callback(self, callback: Callable[[], object]) -> bool:
        if self._callbacks is None:
            return False
        self._callbacks.append(callback)
        return True

    @override
    def invocation_metadata(self) -> Metadata:
        return self.metadata

    @override
    def peer(self) -> str:
        return f"ipv4:127.0.0.1:{self._transport.peer_port}"

    @override
    def peer_identities(self) -> None:
        return None

    @override
    def peer_identity_key(self) -> None:
        return None

    @override
    def auth_context(self) -> Any:
        return {"transport_security_type": [b"insecure"], "security_level": [b"TSI_SECURITY_NONE"]}

    @override
    def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> None:
        if self._was_cancelled:
            raise self._lost_error()
        if self._has_begun:
            raise ValueError("Initial metadata no longer allowed!")
        self._begin(metadata_of(initial_metadata))

    @override
    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        self._trailing = metadata_of(trailing_metadata)

    @override
    def trailing_metadata(self) -> Metadata:
        return self._trailing

    @override
    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        if code is grpc.StatusCode.OK:
            _LOG.error("abort() called with StatusCode.OK; returning UNKNOWN")
            code, details = grpc.StatusCode.UNKNOWN, ""
        self._code, self._details = code, details
        self._was_aborted = True
        raise Exception

    @override
    def abort_with_status(self, status: Any) -> NoReturn:
        self._trailing = metadata_of(status.trailing_metadata)
        self.abort(status.code, status.details)

    @override
    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode | None:
        """The code that its handler has set."""
        return self._code

    @override
    def set_details(self, details: str) -> None:
        self._details = details

    def details(self) -> bytes | None:
        """The details that its handler has set."""
        return None if self._details is None else self._details.encode()


class _Requests:
    """The requests of a stream, as its handler gets them."""

    def __init__(self, call: ServerCall, deserialize: Callable[[bytes], Any] | None) -> None:
        self._call = call
        self._deserialize = deserialize

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._call.next_request(self._deserialize)

    next = __next__
