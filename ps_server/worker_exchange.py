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

from ps_server.answer import Answer
from taihu.errors import MemberLostError, TaihuError
from taihu.wire.codec import Frame, frame_of
from taihu.wire.direct_frames import DirectReceiver, DirectSender, Origin, Sink
from taihu.wire.identity import WorkerIdentity

__all__ = ["WorkerExchange"]

_FAREWELL_S = 2.0


class WorkerExchange:
    """Answers go over `connection` if there is one, else in the stream, which `messages` yields.

    `take(exchange, frame)` gets the frames that come on the connection, dense ones in memory that
    `lend(count, dtype)` gave, and may keep them; `on_lost(exchange, error)` is called when it breaks or brings what
    it must not.
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
        self._closed = self._is_ended = False
        self._ending = threading.Lock()
        self._on_lost = on_lost
        self._outbox: SimpleQueue[Answer | TaihuError | None] = SimpleQueue()
        self._sender: DirectSender | None = None
        self._receiver: DirectReceiver | None = None
        if connection is not None:
            name = f"worker {identity.rank}"
            lost = partial(on_lost, self)
            self._sender = DirectSender(connection.dup(), name, lost)
            sink = Sink(
                places=lambda header: [lend(header.count, header.value_type.dtype)],
                take=lambda header, values, _: take(self, frame_of(header, values[0].view(np.uint8))),
                take_frame=partial(take, self),
            )
            origin = Origin(name, identity.job, identity.incarnation, identity.rank)
            self._receiver = DirectReceiver(connection, origin, sink, lost, self._ended)

    def answer(self, answer: Answer) -> None:
        """Queue an answer."""
        if self._sender is not None:
            # A worker's next frames may wait for an answer without values: it does not queue behind parameters.
            self._sender.send(answer.header, answer.pieces, urgent=not answer.pieces)
        else:
            self._outbox.put(answer)

    def end(self, error: TaihuError | None) -> bool:
        """End the stream after what is queued, with `error` or well; returns whether this was what ended it."""
        with self._ending:
            first, self._is_ended = not self._is_ended, True
        self._outbox.put(error)
        return first

    def messages(self) -> Iterator[bytes]:
        """What the stream carries until it ends; raises the error that it ends with."""
        while (item := self._outbox.get()) is not None:
            if isinstance(item, TaihuError):
                raise item
            yield item.message

    def close(self) -> None:
        """Cut the connection."""
        self._closed = True
        if self._sender is not None and self._receiver is not None:
            self._sender.stop()
            self._receiver.close()
            self._sender.close(_FAREWELL_S)

    def _ended(self) -> None:
        """A worker that leaves in good order ends its stream first, which closes this."""
        if not self._closed:
            self._on_lost(self, MemberLostError(f"worker {self.identity.rank} was lost: its connection ended"))
