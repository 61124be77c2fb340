"""The open exchange with one worker: what it is sent, and what it is told when the exchange ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_server.answering import Answer
from taihu.errors import MemberLostError, TaihuError
from taihu.wire.direct_frames import Origin, Sink
from taihu.wire.frame_link import FrameConnection
from taihu.wire.headers import Frame, Gradients, Question, frame_of
from taihu.wire.identity import WorkerIdentity

__all__ = ["WorkerExchange"]


class WorkerExchange:
    """A worker's frames come in the stream or on a connection beside it, and are answered there.

    `take(exchange, frame)` gets them, and may keep them: dense ones of the connection in memory that `lend(count,
    dtype)` gave. `on_lost(exchange, error)` is called when the connection breaks or brings what it must not. The
    stream yields `messages`.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        connection: socket.socket | None,
        *,
        lend: Callable[[int, np.dtype[Any]], NDArray[Any]],
        take: Callable[[WorkerExchange, Frame], None],
        on_lost: Callable[[WorkerExchange, TaihuError], None],
    ) -> None:
        self.identity = identity
        self.shares = False
        """Whether the worker's last frame had its values in shared memory."""
        self._is_ended = False
        self._ending = threading.Lock()
        self._on_lost = on_lost
        self._outbox: SimpleQueue[Answer | TaihuError | None] = SimpleQueue()
        self._take = take
        self._sink = Sink(
            (Gradients, Question),
            places=lambda header: [lend(header.address.elements, header.value_type.dtype)],
            take=lambda header, values, _: self._take_directly(frame_of(header, values[0].view(np.uint8))),
            take_frame=self._take_directly,
        )
        self._connection: FrameConnection | None = None
        self._closed = False
        self._answers_directly = connection is not None
        if connection is not None:
            self.connect(connection)

    @property
    def sent_directly(self) -> int:
        """Bytes that were sent beside the stream so far."""
        return self._connection.sent_bytes if self._connection is not None else 0

    def connect(self, connection: socket.socket) -> None:
        """Take frames on `connection`, too; a former one is cut."""
        identity = self.identity
        origin = Origin(f"worker {identity.rank}", identity.sender)
        lost = partial(self._on_lost, self)
        ended = partial(lost, MemberLostError(f"{origin.name} was lost: its connection ended"))
        former, self._connection = self._connection, FrameConnection(connection, origin, self._sink, lost, ended)
        if former is not None:
            former.close()
        if self._closed:
            self._connection.close()

    def take(self, frame: Frame) -> None:
        """Take a frame that came in the stream; raises FrameError where it is of a kind that is not expected."""
        self._sink.check(frame.header)
        self._answers_directly = False
        self._take(self, frame)

    def _take_directly(self, frame: Frame) -> None:
        self._answers_directly = True
        self._take(self, frame)

    def answer(self, answer: Answer) -> None:
        """Queue an answer, on what the worker's last frame came on."""
        if self._answers_directly and self._connection is not None:
            # A worker's next frames may wait for an answer without values: it does not queue behind parameters.
            self._connection.send(answer.header, answer.pieces, urgent=not answer.pieces)
        else:
            self._outbox.put(answer)

    def end(self, error: TaihuError | None) -> bool:
        """End the stream after what is queued, with `error` or well; returns whether this was what ended it."""
        with self._ending:
            first, self._is_ended = not self._is_ended, True
        self._outbox.put(error)
        return first

    def messages(self) -> Iterator[bytes]:
        """The messages of the stream until it ends; raises the error that it ends with."""
        while (item := self._outbox.get()) is not None:
            if isinstance(item, TaihuError):
                raise item
            yield item.message

    def close(self) -> None:
        """Cut the connection. A worker that leaves in good order ends its stream first, which leads here."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()
