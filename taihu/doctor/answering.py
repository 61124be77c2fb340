"""The other side of a measured link: frames are answered as a server would, without keeping any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError, TaihuError
from taihu.core.system.threads import Lock, spawn
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.headers import FrameHeader
from taihu.core.wire.frames.identity import Sender, WorkerIdentity
from taihu.core.wire.frames.kinds import Encoding, Farewell, Gradients, Kind, Parameters, Question, Summed
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES
from taihu.core.wire.links.connection import Connection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe
from taihu.core.wire.links.stream_pipe import StreamPipe
from taihu.doctor.link import MOST_BYTES

_MOST_ELEMENTS = MAX_PAYLOAD_BYTES // 4


class AnsweredExchange:
    """One exchange: gradients are answered by a word, a question by as many values, on what each came on.

    It ends with the caller's farewell, with a frame that is none of these, or when the values of all frames together
    are more than `MOST_BYTES`.
    """

    def __init__(self, identity: WorkerIdentity, patience: Patience) -> None:
        self.identity = identity
        self._origin = Origin("who measures", identity.sender, "this doctor", patience)
        out = Outbox(self._origin.name)
        self._stream = StreamPipe(out, Inbox(self._origin, self._sink(out, Gradients, Question, Farewell)))
        self._lock = Lock()
        self._moved_bytes = 0
        self._closed = False
        self._connection: SocketPipe | None = None
        self._values: NDArray[np.float32] = np.ones(_MOST_ELEMENTS, dtype=np.float32)
        self._room: NDArray[Any] = np.empty(MAX_PAYLOAD_BYTES, dtype=np.uint8)

    def messages(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        """The answers of the stream until it ends; raises the TaihuError that it ends with."""
        spawn("doctor-read", self._read, requests)
        try:
            yield from self._stream.out.messages()
        finally:
            self.close()

    def connect(self, connection: Connection) -> None:
        """Answer on a connection, too, one in all."""
        with self._lock:
            if self._closed or self._connection is not None:
                connection.close()
                return
            out = Outbox(self._origin.name)
            inbox = Inbox(self._origin, self._sink(out, Gradients, Question))
            self._connection = SocketPipe(connection, out, inbox, PipeEvents(self.end))

    def _sink(self, out: Outbox, *kinds: type[Kind]) -> Sink:
        """The receiver of the pipe that is answered by `out`."""
        return Sink(
            kinds,
            places=lambda header: [self._place(header)],
            take=lambda header, values, in_place: self._answer(header, out),
            take_frame=lambda frame: self._answer(frame.header, out),
        )

    def end(self, error: TaihuError | None = None) -> None:
        """End the stream with `error`, or well."""
        self._stream.out.end(error)

    def close(self) -> None:
        """Cut everything."""
        with self._lock:
            self._closed = True
            connection = self._connection
        self._stream.stop()
        if connection is not None:
            connection.close()

    def _read(self, requests: Iterator[bytes]) -> None:
        try:
            with suppress(grpc.RpcError):  # who measures is gone, and nobody is left to be told
                self._stream.take(requests)
            self.end()
        except TaihuError as error:
            self.end(error)

    def _answer(self, header: FrameHeader, out: Outbox) -> None:
        elements = header.address.elements
        self._count(header)
        sender = Sender(self.identity.incarnation)
        if isinstance(header.kind, Question):
            out.send(FrameHeader(sender, header.address, Parameters()), [self._values[:elements]])
        elif isinstance(header.kind, Gradients):
            out.send(FrameHeader(sender, header.address, Summed(), Encoding.NONE), ())
        else:
            self.end()

    def _count(self, header: FrameHeader) -> None:
        elements = header.address.elements
        if elements > _MOST_ELEMENTS:
            raise FrameError(f"a frame of {elements} values: a doctor answers at most {_MOST_ELEMENTS}")
        self._moved_bytes += 4 * elements
        if self._moved_bytes > MOST_BYTES:
            raise FrameError(f"more than {MOST_BYTES} bytes in one measurement: a doctor answers no more")

    def _place(self, header: FrameHeader) -> NDArray[Any]:
        size = header.address.elements * header.value_type.dtype.itemsize
        if size > MAX_PAYLOAD_BYTES:
            raise FrameError(f"a frame of {size} bytes: a doctor takes at most {MAX_PAYLOAD_BYTES}")
        return self._room[:size].view(header.value_type.dtype)
