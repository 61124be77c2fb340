"""The way to another process's service: a gRPC stream, and a connection beside it where values shall take one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import grpc
from numpy.typing import NDArray

from taihu.errors import MemberLostError, TaihuError
from taihu.wire.channel import open_channel
from taihu.wire.codec import read_frame
from taihu.wire.direct_connection import open_connection
from taihu.wire.direct_frames import Origin, Sink
from taihu.wire.frame_connection import FAREWELL_S, FrameConnection
from taihu.wire.headers import FrameHeader
from taihu.wire.identity import WorkerIdentity, identity_to_metadata
from taihu.wire.status import error_class, error_from_rpc
from taihu.wire.stream_frames import StreamSender

__all__ = ["Carrier", "FrameLink", "LinkEnd", "LinkEvents"]

Carrier = Literal["grpc", "tcp"]
"""The gRPC stream, or a connection of its own."""
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class _Call(Protocol):
    """A gRPC call that is under way."""

    def cancel(self) -> bool:
        """Cut the call."""
        ...


@dataclass(frozen=True)
class LinkEnd:
    """The other side: `service` at `address`; `origin` says who it is."""

    service: str
    address: str
    origin: Origin


@dataclass(frozen=True)
class LinkEvents:
    """Events of a link until it is closed, abandoned or has failed: it broke, or the other side ended it well."""

    lost: Callable[[TaihuError], None]
    ended: Callable[[], None]


class FrameLink:
    """Sends frames in the order of `send`, and hands what comes back to `sink`; `open` comes first.

    The stream is there as long as the link is: it authorises, says that the other side is alive, and brings the
    reason when it ends. `carry` says what frames take; the other side answers on what it is asked by.
    """

    def __init__(self, end: LinkEnd, identity: WorkerIdentity, sink: Sink, events: LinkEvents) -> None:
        self.channel = open_channel(end.address)
        self._end = end
        self._identity = identity
        self._sink = sink
        self._events = events
        self._closed = self._abandoned = False
        self._stream = StreamSender()
        self._stream_bytes = 0
        self._connection: FrameConnection | None = None
        self._opening: threading.Thread | None = None
        # Guards what a connection that has been opened meets: a link that is there, or has ended.
        self._ending = threading.Lock()
        self._sender: StreamSender | FrameConnection = self._stream
        # What frames took before, until it has read all of them.
        self._former: StreamSender | FrameConnection | None = None
        self._watcher: threading.Thread | None = None
        self._call: _Call | None = None

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
        answers = exchange(self._stream.messages(), metadata=metadata, wait_for_ready=True)
        self.track(answers)
        self._watcher = threading.Thread(target=self._watch, args=(answers,), name="link", daemon=True)
        self._watcher.start()

    def track(self, call: _Call) -> None:
        """`abandon` cuts `call` from now on, also when it came first."""
        self._call = call
        if self._abandoned:
            call.cancel()

    def prepare(self, carrier: Carrier) -> None:
        """Begin to open the connection that `carrier` needs; until it is there, or where none can be, gRPC goes on.

        A firewall that drops what it does not let through keeps an attempt waiting for seconds: nobody else waits,
        but in `settle`. It may be called before `open`.
        """
        if carrier == "grpc" or self._opening is not None or self._closed:
            return
        self._opening = threading.Thread(target=self._connect, name="link-connect", daemon=True)
        self._opening.start()

    def settle(self) -> None:
        """Return when it is known whether there is a connection, if `prepare` began to open one."""
        if self._opening is not None:
            self._opening.join()

    def _connect(self) -> None:
        name = self._end.origin.name
        opened = None
        with suppress(ValueError):  # the channel has been closed
            opened = open_connection(self.channel, self._end.service, self._end.address, self._identity, name)
        if opened is None:
            return
        with self._ending:
            if self._closed:
                opened.close()
                return
            lost = MemberLostError(f"{name} was lost: its connection ended")
            self._connection = FrameConnection(
                opened, self._end.origin, self._sink, self._connection_lost, partial(self._connection_lost, lost)
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

    def abandon(self) -> None:
        """Cut the link without a word; whoever waits for it has been told why."""
        self._end_opening()
        self._abandoned = True
        self._stream.stop()
        if self._connection is not None:
            self._connection.stop()
        if self._call is not None:
            self._call.cancel()

    def close(self, last_word: FrameHeader | None = None) -> None:
        """End in good order: let the other side take in what has been sent, for a while, before a last word."""
        self._end_opening()
        if last_word is not None:
            if self._connection is not None:
                self._connection.finish()
            self._stream.send(last_word, ())
        self._stream.end()
        if self._watcher is not None:
            self._watcher.join(FAREWELL_S if last_word is not None else None)
        self.channel.close()
        if self._watcher is not None:
            self._watcher.join()
        if self._connection is not None:
            self._connection.close()

    def _end_opening(self) -> None:
        """The link is closed: a connection that is opened yet is not taken."""
        with self._ending:
            self._closed = True

    def _watch(self, messages: Iterable[bytes]) -> None:
        """Take what comes in the stream until it ends; runs in a thread of its own."""
        name = self._end.origin.name
        try:
            for message in messages:
                self._stream_bytes += len(message)
                self._sink.take_any(read_frame(message))
        except grpc.RpcError as error:
            if error_class(error) is None and isinstance(error, grpc.Call) and error.code() in _BROKEN:
                self._lost(MemberLostError(f"{name} was lost: its connection broke"))
            else:
                self._lost(error_from_rpc(error, name))
        except TaihuError as error:
            self._lost(error)
        else:
            if not self._closed:
                self._events.ended()

    def _connection_lost(self, error: TaihuError) -> None:
        """The connection broke, or brought what it must not."""
        if isinstance(error, MemberLostError) and self._watcher is not None:
            # The other side may be about to say why, or that it leaves.
            self._watcher.join(FAREWELL_S)
            if not self._watcher.is_alive():
                return
        self._lost(error)

    def _lost(self, error: TaihuError) -> None:
        if not self._closed:
            self._events.lost(error)
