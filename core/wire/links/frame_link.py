"""The way to another process's service: a gRPC stream, and a connection beside it where values shall take one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import grpc
from numpy.typing import NDArray

from taihu.core.base.errors import MemberLostError, RunError, TaihuError
from taihu.core.security.security import Security
from taihu.core.system.sockets import Socket
from taihu.core.system.threads import Event, Lock, Thread, spawn
from taihu.core.wire.base.status import error_class, error_from_rpc
from taihu.core.wire.frames.frame_faults import FrameFaults, NoFrameFaults
from taihu.core.wire.frames.headers import FrameHeader
from taihu.core.wire.frames.identity import WorkerIdentity, identity_to_metadata
from taihu.core.wire.links.direct_connection import open_connection
from taihu.core.wire.links.direct_frames import DirectReceiver, DirectSender
from taihu.core.wire.links.sink import Origin, Sink
from taihu.core.wire.links.stream import StreamReader, StreamSender
from taihu.core.wire.links.under_way import OutgoingFrame
from taihu.core.wire.serving.channel import open_channel

__all__ = ["Carrier", "FrameConnection", "FrameLink", "LinkEnd", "LinkEvents"]

Carrier = Literal["grpc", "tcp"]
"""The gRPC stream, or a connection of its own."""
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class _Call(Protocol):
    """A gRPC call that is under way."""

    def cancel(self) -> bool:
        """Cut the call."""
        ...

    def is_active(self) -> bool:
        """Whether it goes on."""
        ...


@dataclass(frozen=True)
class LinkEnd:
    """The other side: `service` at `address`; `origin` says who it is.

    Under the `security` of this process it has to be `member`, such as `server-0`.
    """

    service: str
    address: str
    origin: Origin
    member: str = ""
    security: Security = field(default_factory=Security)


@dataclass(frozen=True)
class LinkEvents:
    """Events of a link until it is closed, abandoned or has failed: it broke, or the other side ended it well."""

    lost: Callable[[TaihuError], None]
    ended: Callable[[], None]


def _untold() -> None:
    """Nobody wants to know."""


class FrameConnection:
    """Sends and receives frames over `connection`, in a thread for each direction.

    Args:
        connection: belongs to this object.
        origin: the other side.
        sink: takes what it sends, see `DirectReceiver`.
        on_lost: called, until `close`, with what broke the connection or what it brought that it must not.
        on_ended: called, until `close`, when the other side has ended its direction between two frames.
        faults: of the frames that are sent.
    """

    def __init__(
        self,
        connection: Socket,
        origin: Origin,
        sink: Sink,
        on_lost: Callable[[TaihuError], None],
        on_ended: Callable[[], None] = _untold,
        *,
        faults: FrameFaults | None = None,
    ) -> None:
        self._closed = self._has_ended = False
        self._farewell_s = origin.patience.farewell_s
        self._on_lost = on_lost
        self._on_ended = on_ended
        self._sender = DirectSender(connection.dup(), origin.name, self._cannot_send, faults=faults)
        self._receiver = DirectReceiver(connection, origin, sink, self._lost, self._ended)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        return self._sender.sent_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        return self._receiver.received_bytes

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        """Queue a frame, before all that are not urgent if it is; as `DirectSender.send`."""
        self._sender.send(header, pieces, urgent=urgent)

    def put(self, frame: OutgoingFrame, *, urgent: bool = False) -> None:
        """Queue a frame that others get, too."""
        self._sender.put(frame, urgent=urgent)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback` when all frames queued so far, as urgent, have been read; as `DirectSender.after`."""
        self._sender.after(callback, urgent=urgent)

    def give_up(self) -> None:
        """The other side has left in good order: it wants nothing more."""
        self._sender.give_up()

    def stop(self) -> None:
        """Send nothing any more but the rest of the frame that is under way; returns at once."""
        self._sender.stop()

    def finish(self) -> None:
        """Send what is queued, and end this direction; returns then, or when the other side takes too long."""
        self._sender.close(self._farewell_s)

    def drain(self) -> None:
        """Return when everything that the other side sent has been taken, and it has ended its direction."""
        self._receiver.join()

    def close(self) -> None:
        """Cut both directions; nothing is told any more."""
        self._closed = True
        self._sender.stop()
        self._receiver.close()
        self._sender.close(self._farewell_s)

    def _lost(self, error: TaihuError) -> None:
        if not self._closed:
            self._on_lost(error)

    def _cannot_send(self, error: TaihuError) -> None:
        # Who has ended its direction has all it wants, and may cut the other before the last word on it comes.
        if not (self._has_ended and isinstance(error, MemberLostError)):
            self._lost(error)

    def _ended(self) -> None:
        self._has_ended = True
        if not self._closed:
            self._on_ended()


class FrameLink:
    """Sends frames in the order of `send`, and hands what comes back to `sink`; `open` comes first.

    The stream is there as long as the link is: it authorises, says that the other side is alive, and brings the
    reason when it ends. `carry` says what frames take; the other side answers on what it is asked by. `faults` are
    those of the frames that are sent.
    """

    def __init__(
        self,
        end: LinkEnd,
        identity: WorkerIdentity,
        sink: Sink,
        events: LinkEvents,
        *,
        faults: FrameFaults | None = None,
    ) -> None:
        self._patience = end.origin.patience
        self.channel = open_channel(end.address, self._patience, end.security, end.member)
        self._end = end
        self._identity = identity
        self._sink = sink
        self._events = events
        self._closed = self._abandoned = False
        self._faults = faults
        self._stream = StreamSender(end.origin.name, faults=faults)
        self._stream_bytes = 0
        self._connection: FrameConnection | None = None
        self._opening: Thread | None = None
        # Guards what a connection that has been opened meets: a link that is there, or has ended.
        self._ending = Lock()
        self._sender: StreamSender | FrameConnection = self._stream
        # What frames took before, until it has read all of them.
        self._former: StreamSender | FrameConnection | None = None
        self._watcher: Thread | None = None
        # The stream is open, or never will be.
        self._past_opening = Event()
        self._calls: list[_Call] = []
        # Those by which a connection is asked for: the other side may be gone, and never answer.
        self._questions: list[_Call] = []

    @property
    def path(self) -> Carrier:
        """The path that frames take now."""
        return "grpc" if self._sender is self._stream else "tcp"

    @property
    def sent_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        return self._stream.sent_bytes + (self._connection.sent_bytes if self._connection is not None else 0)

    @property
    def received_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        return self._stream_bytes + (self._connection.received_bytes if self._connection is not None else 0)

    def open(self) -> None:
        """Open the stream."""
        exchange: grpc.StreamStreamMultiCallable[bytes, bytes]
        exchange = self.channel.stream_stream(f"/{self._end.service}/Exchange")
        metadata = identity_to_metadata(self._identity)
        answers = exchange(self._messages(), metadata=metadata, wait_for_ready=True)
        self.track(answers)
        # Others wait for it from here on, which they cannot before it has begun.
        self._watcher = spawn("link", self._watch, answers)
        self._past_opening.set()

    def _messages(self) -> Iterator[bytes]:
        """The stream's messages until what is queued ends, or one is broken off."""
        try:
            yield from self._stream.messages()
        except TaihuError as error:
            self._lost(error)

    def track(self, call: _Call) -> None:
        """`abandon` cuts `call` from now on, also when it came first."""
        with self._ending:
            self._calls = [*(each for each in self._calls if each.is_active()), call]
        if self._abandoned:
            call.cancel()

    def _track_question(self, call: _Call) -> None:
        """Whatever ends the link cuts `call`, also when it came first."""
        self.track(call)
        with self._ending:
            self._questions = [*(each for each in self._questions if each.is_active()), call]
        if self._closed:
            call.cancel()

    def prepare(self, carrier: Carrier) -> None:
        """Begin to open the connection that `carrier` needs; until it is there, or where none can be, gRPC goes on.

        Under TLS there is none. A firewall that drops what it does not let through keeps an attempt waiting for
        seconds: nobody else waits, but in `settle`. It may be called before `open`.
        """
        if carrier == "grpc" or self._end.security.encrypts or self._opening is not None or self._closed:
            return
        self._opening = spawn("link-connect", self._connect)

    def settle(self) -> None:
        """Return when it is known whether there is a connection, if `prepare` began to open one."""
        if self._opening is not None:
            self._opening.join()

    def _connect(self) -> None:
        name = self._end.origin.name
        opened = None
        with suppress(ValueError):  # the channel has been closed
            opened = open_connection(
                self.channel,
                self._end.service,
                self._end.address,
                self._identity,
                self._end.origin,
                track=self._track_question,
            )
        if opened is None:
            return
        with self._ending:
            if self._closed:
                opened.close()
                return
            lost = MemberLostError(f"{name} was lost: its connection ended")
            self._connection = FrameConnection(
                opened,
                self._end.origin,
                self._sink,
                self._connection_lost,
                partial(self._connection_lost, lost),
                faults=self._faults,
            )

    def open_for_ring(self) -> Socket | None:
        """A connection to the other side beside this link, which takes no frames; None where there cannot be one.

        There is none under TLS, through a firewall, which is waited for, or where frames have faults. The caller
        closes it.
        """
        end = self._end
        if end.security.encrypts or not isinstance(self._faults, NoFrameFaults | None):
            return None
        return open_connection(
            self.channel,
            end.service,
            end.address,
            self._identity,
            end.origin,
            for_ring=True,
            track=self._track_question,
        )

    def carry(self, carrier: Carrier) -> None:
        """Send frames by `carrier` from now on, if it is there (`prepare`)."""
        sender: StreamSender | FrameConnection = self._stream
        if carrier == "tcp" and self._connection is not None:
            sender = self._connection
        if sender is not self._sender:
            former, self._former = self._sender, self._sender
            self._sender = sender
            former.after(partial(self._forget, former))

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        """Queue a frame; the arrays are read when its turn comes, and must not change until then (see `after`)."""
        self._sender.send(header, pieces, urgent=urgent)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, from the sending thread, when all frames queued so far, as urgent, are read."""
        former, sender = self._former, self._sender
        if former is None:
            sender.after(callback, urgent=urgent)
        else:
            former.after(partial(sender.after, callback, urgent=urgent))

    def _forget(self, former: StreamSender | FrameConnection) -> None:
        """All frames that `former` was given have been read."""
        if self._former is former:
            self._former = None

    def fail(self, last_word: FrameHeader) -> None:
        """Say why this side gives up; nothing else is sent any more."""
        self._end_opening()
        self._stream.send(last_word, ())
        self._stream.end()
        if self._connection is not None:
            self._connection.stop()

    def take_leave(self, last_word: FrameHeader) -> None:
        """Say that this side leaves: everything that it sent has been answered. `close` follows."""
        self._closed = True
        self._stream.send(last_word, ())

    def abandon(self) -> None:
        """Cut the link without a word; whoever waits for it has been told why."""
        self._end_opening()
        self._abandoned = True
        self._stream.stop()
        if self._connection is not None:
            self._connection.stop()
        for call in self._calls:
            call.cancel()

    def settle_end(self, limit_s: float) -> None:
        """Return when the other side has heard the last word of `fail`, or after `limit_s`."""
        if self._watcher is not None:
            self._watcher.join(limit_s)

    def close(self, last_word: FrameHeader | None = None) -> None:
        """End in good order: let the other side take in what has been sent, for a while, before a last word."""
        self._end_opening()
        if last_word is not None:
            if self._connection is not None:
                self._connection.finish()
            self._stream.send(last_word, ())
        self._stream.end()
        if self._watcher is not None:
            self._watcher.join(self._patience.farewell_s if last_word is not None else None)
        self.channel.close()
        if self._watcher is not None:
            self._watcher.join()
        if self._connection is not None:
            self._connection.close()

    def _end_opening(self) -> None:
        """The link is closed: a connection that is opened yet is not taken, nor waited for."""
        with self._ending:
            self._closed = True
            questions = self._questions
        self._past_opening.set()
        for question in questions:
            question.cancel()

    def _watch(self, messages: Iterable[bytes]) -> None:
        """Take what comes in the stream until it ends; runs in a thread of its own."""
        name = self._end.origin.name
        reader = StreamReader(self._end.origin)
        try:
            for message in messages:
                self._stream_bytes += len(message)
                frame = reader.read(message)
                if frame is not None:
                    self._sink.take_any(frame)
        except grpc.RpcError as error:
            if error_class(error) is None and isinstance(error, grpc.Call) and error.code() in _BROKEN:
                self._lost(MemberLostError(f"{name} was lost: its connection broke"))
            else:
                self._lost(error_from_rpc(error, name))
        except TaihuError as error:
            self._lost(error)
        except BaseException as error:
            self._lost(RunError(f"internal error while taking in a frame of {name}: {error!r}"))
            raise
        else:
            if not self._closed:
                self._events.ended()
            self._stream.give_up()
            if self._connection is not None:
                self._connection.give_up()

    def _connection_lost(self, error: TaihuError) -> None:
        """The connection broke, or brought what it must not."""
        if isinstance(error, MemberLostError):
            # The other side may be about to say why, or that it leaves: in the stream, once that is there.
            self._past_opening.wait()
            if self._watcher is not None:
                self._watcher.join(self._patience.farewell_s)
                if not self._watcher.is_alive():
                    return
        self._lost(error)

    def _lost(self, error: TaihuError) -> None:
        if not self._closed:
            self._events.lost(error)
