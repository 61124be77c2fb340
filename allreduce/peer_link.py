"""The way from this worker to another one: a gRPC stream, and where it can be had a connection for the values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from numpy.typing import NDArray

from protos import peer_pb2 as pb
from taihu.errors import MemberLostError, TaihuError
from taihu.wire.channel import open_channel
from taihu.wire.codec import FrameHeader
from taihu.wire.direct_connection import open_connection
from taihu.wire.direct_frames import DirectSender
from taihu.wire.identity import WorkerIdentity, identity_to_metadata
from taihu.wire.status import error_class, error_from_rpc
from taihu.wire.stream_frames import StreamSender

__all__ = ["PEER_SERVICE", "LinkEvents", "PeerLink"]

PEER_SERVICE = pb.DESCRIPTOR.services_by_name["PeerService"].full_name
_FAREWELL_S = 2.0


@dataclass(frozen=True)
class LinkEvents:
    """What a link tells, before `close`: it broke, or the rank at its end left in good order."""

    lost: Callable[[TaihuError], None]
    left: Callable[[int], None]


class PeerLink:
    """Sends frames to worker `rank` in the order of `send`; opens its stream at once.

    With `direct`, values take a connection of their own if the other side can be reached that way.
    """

    def __init__(
        self, rank: int, address: str, identity: WorkerIdentity, events: LinkEvents, *, direct: bool = True
    ) -> None:
        self.peer = f"worker {rank} at {address}"
        self._rank = rank
        self._events = events
        self._closed = False
        self._stream = StreamSender()
        self._channel = open_channel(address)
        exchange: grpc.StreamStreamMultiCallable[bytes, bytes]
        exchange = self._channel.stream_stream(f"/{PEER_SERVICE}/Exchange")
        self._call = exchange(self._stream.messages(), metadata=identity_to_metadata(identity), wait_for_ready=True)
        self._watcher = threading.Thread(target=self._watch, args=(self._call,), name="peer-link", daemon=True)
        self._watcher.start()
        self._direct = self._open_direct(address, identity) if direct else None
        self._sender = self._direct or self._stream

    @property
    def path(self) -> str:
        """How values travel: `tcp` on a connection of their own, `grpc` in the stream."""
        return "grpc" if self._direct is None else "tcp"

    @property
    def sent_bytes(self) -> int:
        """Bytes of all frames so far, headers included."""
        return self._stream.sent_bytes + (self._direct.sent_bytes if self._direct is not None else 0)

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        """Queue a frame; the arrays are read when its turn comes, and must not change until then (see `after`)."""
        self._sender.send(header, pieces, urgent=urgent)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback`, from the link's sending thread, when all frames queued so far, as urgent, are read."""
        self._sender.after(callback, urgent=urgent)

    def fail(self, header: FrameHeader) -> None:
        """Say that this worker gives up, for the reason in `header`; nothing else is sent any more."""
        self._closed = True
        self._stream.send(header, ())
        self._stream.end()
        if self._direct is not None:
            self._direct.stop()

    def close(self, header: FrameHeader) -> None:
        """End in good order, which `header` says: let the other side take in what has been sent, for a while."""
        self._closed = True
        if self._direct is not None:
            self._direct.close(_FAREWELL_S)
        self._stream.send(header, ())
        self._stream.end()
        self._watcher.join(_FAREWELL_S)
        self._channel.close()
        self._watcher.join()

    def _watch(self, answers: Iterable[bytes]) -> None:
        """Wait until the other side ends the stream."""
        try:
            for _ in answers:
                pass
        except grpc.RpcError as error:
            meant = error_class(error)
            lost = MemberLostError(f"{self.peer} was lost: its connection broke")
            self._lost(error_from_rpc(error, self.peer) if meant is not None else lost)
        else:
            if not self._closed:
                self._events.left(self._rank)

    def _lost(self, error: TaihuError) -> None:
        if not self._closed:
            self._events.lost(error)

    def _open_direct(self, address: str, identity: WorkerIdentity) -> DirectSender | None:
        connection = open_connection(self._channel, PEER_SERVICE, address, identity, self.peer)
        return DirectSender(connection, self.peer, self._lost) if connection is not None else None
