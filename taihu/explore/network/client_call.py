"""A gRPC call in memory as its client sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import grpc
from typing_extensions import override

from taihu.explore.network.calls import Inbox, Metadata, Method, Status
from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.waiting import Waiting

if TYPE_CHECKING:
    from taihu.explore.network.channel import Channel
    from taihu.explore.network.server_call import ServerCall
    from taihu.explore.network.subchannel import Link

__all__ = ["ClientCall"]

_LOG = logging.getLogger(__name__)


class ClientCall(grpc.RpcError, grpc.Call, grpc.Future):  # type: ignore[type-arg]  # no generic class at run time
    """A call: the iterator of its answers, the future of its answer, and the error that it ended with.

    Args:
        channel: on which it is made.
        method: that is called.
        deserialize: makes an answer of bytes.
        timeout_s: after which it ends; None: never.
        metadata: that the server gets.
        waits_for_ready: whether it waits where nobody can be connected to.
        has_one_answer: whether the answer is one message.
    """

    def __init__(
        self,
        channel: Channel,
        method: Method,
        deserialize: Callable[[bytes], Any] | None,
        timeout_s: float | None,
        metadata: Metadata,
        *,
        waits_for_ready: bool,
        has_one_answer: bool,
    ) -> None:
        super().__init__()
        scheduler = RUNNING()
        self.method = method
        self.metadata = metadata
        self.waits_for_ready = waits_for_ready
        self.requests = Inbox("a request")
        self.answers = Inbox("an answer")
        self.server_call: ServerCall | None = None
        self.until_s = None if timeout_s is None else scheduler.now + timeout_s / channel.process.clock_rate
        self._channel = channel
        self._deserialize = deserialize
        self._has_one_answer = has_one_answer
        self._answer: Any = None
        self._link: Link | None = None
        self._initial: Metadata | None = None
        self._status: Status | None = None
        # The server's word, while there are answers before it that nobody has taken.
        self._said: Status | None = None
        self._was_cancelled = False
        # Something of a stream of requests is on its way.
        self._has_sent = False
        self._callbacks: list[Callable[[], object]] = []
        self._changed = Waiting("the connection of a call")
        self._timer: int | None = None
        if self.until_s is not None:
            self._timer = scheduler.call_at(self.until_s - scheduler.now, self._is_late)

    # -- requests

    def goes_again(self) -> bool:
        """Send it once more on another connection, as the server has not taken it; whether that can be."""
        if self._status is not None or self.server_call is not None or self._has_sent:
            return False
        if self._link is not None:
            self._link.forget(self)
            self._link = None
        self._channel.begin(self)
        return True

    def attach(self, link: Link) -> None:
        """There is a connection: the call goes out."""
        self._link = link
        link.calls[self] = None
        link.end.out.send(partial(link.begin_there, self))
        self._changed.wake()

    def send_only(self, message: bytes) -> None:
        """Have `message` go out with the call, and nothing else: comes before `attach`."""
        if self._is_too_large(message):
            return
        self.requests.arrive(message)
        self.requests.end()

    def send_all(self, requests: Iterator[Any], serialize: Callable[[Any], bytes | None]) -> None:
        """Send requests as they are there; runs as a task of its own."""
        scheduler = RUNNING()
        while True:
            try:
                request = next(requests)
            except StopIteration:
                break
            except Exception:
                _LOG.exception("Exception iterating requests!")
                self.abort(grpc.StatusCode.UNKNOWN, "Exception iterating requests!")
                return
            message = serialize(request)
            if message is None:
                self.abort(grpc.StatusCode.INTERNAL, "Exception serializing request!")
                return
            if self._is_too_large(message) or not self._send(len(message), partial(self.requests.arrive, message)):
                return
            scheduler.point(self.method.sending)
        self._send(0, self.requests.end)

    def _send(self, size: int, arrive: Callable[[], None]) -> bool:
        """Send something of a stream as soon as there is a connection, and room; whether the call goes on."""
        while self._status is None:
            if self._link is None:
                self._changed.wait()
            elif self.requests.has_room(size):
                self._has_sent = True
                self._link.end.out.send(arrive)
                return True
            else:
                self.requests.room.wait()
        return False

    def _is_too_large(self, message: bytes) -> bool:
        most = self._channel.most_sent_bytes
        if most < 0 or len(message) <= most:
            return False
        self.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"Sent message larger than max ({len(message)} vs. {most})")
        return True

    # -- what comes from the server; between tasks

    def brought(self, initial: Metadata) -> None:
        """The server's first metadata has come."""
        if self._initial is None:
            self._initial = initial
            self.answers.waiting.wake()

    def answered(self, message: bytes) -> None:
        """An answer has come."""
        if self._status is not None:
            return
        most = self._channel.most_received_bytes
        if 0 <= most < len(message):
            self.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({len(message)} vs. {most})"
            )
            return
        self.answers.arrive(message)
        if self._has_one_answer:
            self._answer = self._read(self.answers.take())

    def ended(self, status: Status) -> None:
        """The server's word at the end has come."""
        if self._status is None:
            self._said = status
            self._settle()

    def fail_unavailable(self, details: str) -> None:
        """There is no connection, or no more; what has come before the server's word at the end is still there."""
        if self._said is None:
            self._finish(Status(grpc.StatusCode.UNAVAILABLE, details, ()))

    def _settle(self) -> None:
        """End as the server said, where all answers before that are taken."""
        if self._said is not None and not len(self.answers):
            self._finish(self._said)

    def _read(self, message: bytes) -> Any:
        try:
            answer = message if self._deserialize is None else self._deserialize(message)
        except Exception:
            _LOG.exception("Exception deserializing message!")
            answer = None
        if answer is None:
            self.abort(grpc.StatusCode.INTERNAL, "Exception deserializing response!")
        return answer

    # -- the end

    def abort(self, code: grpc.StatusCode, details: str) -> bool:
        """End it from this side; the server is told. Whether it went on until now."""
        if self._status is not None:
            return False
        link = self._link
        self._finish(Status(code, details, ()))
        if link is not None:
            link.end.out.send(self._arrive_reset)
        return True

    def end_with_channel(self) -> None:
        """Its channel is closed; gRPC says so in other words once the server has said something."""
        words = "Channel closed!" if self._initial is None else "Stream removed (Channel closed!)"
        self.abort(grpc.StatusCode.CANCELLED, words)

    def _arrive_reset(self) -> None:
        if self.server_call is not None:
            self.server_call.lost()

    def _is_late(self) -> None:
        self._timer = None
        self.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _finish(self, status: Status) -> None:
        if self._status is not None:
            return
        self._status = status
        if self._initial is None:
            self._initial = ()
        if self._timer is not None:
            RUNNING().call_off(self._timer)
        self._channel.forget(self)
        if self._link is not None:
            self._link.forget(self)
        self.answers.waiting.wake()
        self.requests.room.wake()
        self._changed.wake()
        if self._callbacks:
            self._channel.call_back(self._callbacks)

    def _wait(self, timeout_s: float | None = None) -> None:
        RUNNING().point(self.method.receiving)
        if not self.answers.waiting.wait_until(self.done, timeout_s):
            raise grpc.FutureTimeoutError

    def _raise(self) -> NoReturn:
        if self._was_cancelled:
            raise grpc.FutureCancelledError
        raise self

    # -- grpc.Call, grpc.Future and the iterator

    def outcome(self) -> Any:
        """Wait for the answer; raises this call where it ended with an error."""
        self._wait()
        if self._status is None or self._status.code is not grpc.StatusCode.OK:
            raise self
        return self._answer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        RUNNING().point(self.method.receiving)
        answers = self.answers
        while True:
            if self._status is not None:
                if self._status.code is grpc.StatusCode.OK:
                    raise StopIteration
                raise self
            if len(answers):
                message = answers.take()
                self._settle()
                answer = self._read(message)
                if answer is not None:
                    return answer
            else:
                answers.waiting.wait()

    next = __next__

    @override
    def is_active(self) -> bool:
        return self._status is None

    @override
    def time_remaining(self) -> float:
        # gRPC's own types say that there always is a deadline.
        remaining_s = None if self.until_s is None else RUNNING().seconds_until(self.until_s)
        return cast(float, remaining_s)

    @override
    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._was_cancelled = True
        return self.abort(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")

    @override
    def add_callback(self, callback: Callable[[], object]) -> bool:
        if self._status is not None:
            return False
        self._callbacks.append(callback)
        return True

    @override
    def initial_metadata(self) -> Metadata:
        self.answers.waiting.wait_until(lambda: self._initial is not None)
        return self._initial or ()

    @override
    def trailing_metadata(self) -> Any:
        return self._ended().trailing

    @override
    def code(self) -> grpc.StatusCode:
        return self._ended().code

    @override
    def details(self) -> str:
        return self._ended().details

    def debug_error_string(self) -> str:
        """As of gRPC's calls."""
        return str(self)

    def _ended(self) -> Status:
        while self._status is None:
            self._wait()
        return self._status

    @override
    def cancelled(self) -> bool:
        return self._was_cancelled

    @override
    def running(self) -> bool:
        return self._status is None

    @override
    def done(self) -> bool:
        return self._status is not None

    @override
    def result(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        if self._ended().code is not grpc.StatusCode.OK:
            self._raise()
        return self._answer

    @override
    def exception(self, timeout: float | None = None) -> Exception | None:
        self._wait(timeout)
        if self._ended().code is grpc.StatusCode.OK:
            return None
        if self._was_cancelled:
            raise grpc.FutureCancelledError
        return self

    @override
    def traceback(self, timeout: float | None = None) -> Any:
        error = self.exception(timeout)
        return None if error is None else error.__traceback__

    @override
    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        if self._status is None:
            self._callbacks.append(partial(fn, self))
        else:
            fn(self)

    def __str__(self) -> str:
        if self._status is None:
            return f"<call of {self.method.path} under way>"
        return (
            f"<call of {self.method.path} that terminated with:\n\tstatus = {self._status.code}\n"
            f'\tdetails = "{self._status.details}"\n>'
        )

    __repr__ = __str__
    # Calls are members of sets: each is itself alone.
    __hash__ = object.__hash__
