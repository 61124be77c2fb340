"""The way to another process's service: a gRPC stream, and a connection beside it where values shall take one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import grpc

from taihu.core.base.errors import MemberLostError, RunError, TaihuError
from taihu.core.security.security import Security
from taihu.core.system.sockets import Socket
from taihu.core.system.threads import Event, Lock, Thread, spawn
from taihu.core.wire.base.status import error_class, error_from_rpc
from taihu.core.wire.frames.frame_faults import FrameFaults, NoFrameFaults
from taihu.core.wire.frames.identity import WorkerIdentity, identity_to_metadata
from taihu.core.wire.links.direct_connection import open_connection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox, OutgoingFrame
from taihu.core.wire.links.pipe import Carrier, Pipe, PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe
from taihu.core.wire.links.stream_pipe import StreamPipe
from taihu.core.wire.serving.channel import open_channel

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


class FrameLink:
    """Sends frames in the order of `send`, and hands what comes back to `sink`; `open` comes first.

    The stream is there as long as the link is: it authorises, says that the other side is alive, and brings the
    reason when it ends. `carry` says what frames take; the other side answers on what it is asked by. `faults` are
    those of the frames that are sent.

    Attributes:
        send: queues a frame, see `Outbox.send`; its arrays must not change until it is read.
        after: calls back when all frames queued so far, as urgent, are read, see `Outbox.after`.
    """

    def __init__(
        self,
        end: LinkEnd,
        identity: WorkerIdentity,
        sink: Sink,
        events: PipeEvents,
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
        self._stream = StreamPipe(Outbox(end.origin.name, faults=faults), Inbox(end.origin, sink))
        self._connection: SocketPipe | None = None
        self._opening: Thread | None = None
        # Guards what a connection that has been opened meets: a link that is there, or has ended.
        self._ending = Lock()
        self._out = self._stream.out
        # No layer of a frame: those of what it takes.
        self.send, self.after = self._out.send, self._out.after
        self._watcher: Thread | None = None
        # The stream is open, or never will be.
        self._past_opening = Event()
        self._calls: list[_Call] = []
        # Those by which a connection is asked for: the other side may be gone, and never answer.
        self._questions: list[_Call] = []

    @property
    def path(self) -> Carrier:
        """The path that frames take now."""
        return "grpc" if self._out is self._stream.out else "tcp"

    @property
    def sent_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        return sum(pipe.out.sent_bytes for pipe in self._pipes())

    @property
    def received_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        return sum(pipe.inbox.received_bytes for pipe in self._pipes())

    def _pipes(self) -> list[Pipe]:
        return [self._stream] if self._connection is None else [self._stream, self._connection]

    def open(self) -> None:
        """Open the stream."""
        exchange: grpc.StreamStreamMultiCallable[bytes, bytes]
        exchange = self.channel.stream_stream(f"/{self._end.service}/Exchange")
        metadata = identity_to_metadata(self._identity)
        answers = exchange(self._stream.out.messages(self._lost), metadata=metadata, wait_for_ready=True)
        self.track(answers)
        # Others wait for it from here on, which they cannot before it has begun.
        self._watcher = spawn("link", self._watch, answers)
        self._past_opening.set()

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

        A firewall that drops what it does not let through keeps an attempt waiting for seconds: nobody else waits,
        but in `settle`. It may be called before `open`.
        """
        if carrier == "grpc" or self._opening is not None or self._closed:
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
                sealing=self._end.security.sealing(self._end.member),
                track=self._track_question,
            )
        if opened is None:
            return
        with self._ending:
            if self._closed:
                opened.close()
                return
            lost = MemberLostError(f"{name} was lost: its connection ended")
            events = PipeEvents(self._connection_lost, partial(self._connection_lost, lost))
            out, inbox = Outbox(name, faults=self._faults), Inbox(self._end.origin, self._sink)
            self._connection = SocketPipe(opened, out, inbox, events)

    def open_for_ring(self) -> Socket | None:
        """A connection to the other side beside this link, which takes no frames; None where there cannot be one.

        There is none under TLS, through a firewall, which is waited for, or where frames have faults. The caller
        closes it.
        """
        end = self._end
        if end.security.encrypts or not isinstance(self._faults, NoFrameFaults | None):
            return None
        opened = open_connection(
            self.channel,
            end.service,
            end.address,
            self._identity,
            end.origin,
            for_ring=True,
            track=self._track_question,
        )
        return None if opened is None else opened.alone()

    def carry(self, carrier: Carrier) -> None:
        """Send frames by `carrier` from now on, if it is there (`prepare`)."""
        out = self._stream.out
        if carrier == "tcp" and self._connection is not None:
            out = self._connection.out
        if out is not self._out:
            out.follow(self._out)
            self._out = out
            self.send, self.after = out.send, out.after

    def fail(self, word: OutgoingFrame) -> None:
        """Say why this side gives up, by a last word; nothing else is sent any more."""
        self._end_opening()
        self._stream.out.put(word)
        self._stream.out.end()
        if self._connection is not None:
            self._connection.stop()

    def take_leave(self, word: OutgoingFrame) -> None:
        """Say, by a last word, that this side leaves: everything that it sent has been answered. `close` follows."""
        self._closed = True
        self._stream.out.put(word)

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

    def close(self, word: OutgoingFrame | None = None) -> None:
        """End in good order: let the other side take in what has been sent, for a while, before a last word."""
        self._end_opening()
        if word is not None:
            if self._connection is not None:
                self._connection.finish()
            self._stream.out.put(word)
        self._stream.out.end()
        if self._watcher is not None:
            self._watcher.join(self._patience.farewell_s if word is not None else None)
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
        try:
            self._stream.take(messages)
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
            self._stream.out.give_up(is_over=True)
            if self._connection is not None:
                self._connection.out.give_up()

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
