"""TCP in memory: bytes in both directions of a connection."""

from __future__ import annotations

import errno
import os
from collections import deque
from functools import partial
from typing import Final, cast

from taihu.explore.network.connections import End, Loss
from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.waiting import Waiting

__all__ = ["FOREVER", "Patience", "Stream", "error"]

_ROOM_BYTES: Final = 256 << 10
# The share of what is sent that arrives in two parts.
_PARTED: Final = 0.05
_SENDING: Final = "send frame"
_RECEIVING: Final = "receive frame"


class Patience:
    """The wait of a call of the kernel's: as Python's sockets do.

    Args:
        until_s: None waits until all is done; else whatever can be done by then is enough; 0.0 waits for nothing.
    """

    __slots__ = ("is_bounded", "until_s")

    def __init__(self, until_s: float | None) -> None:
        self.is_bounded = until_s is not None
        self.until_s = until_s

    def check(self) -> None:
        """Raise an OSError where it has waited for long enough."""
        if self.until_s == 0.0:
            raise error(errno.EAGAIN)
        if self.until_s is not None and RUNNING().now >= self.until_s:
            raise TimeoutError("timed out")


FOREVER: Final = Patience(None)
"""Waits until all is done."""


class Stream:
    """One side of a TCP connection: what has arrived, and what may be sent.

    Args:
        end: of the connection.
    """

    def __init__(self, end: End) -> None:
        self.end = end
        end.handler = self
        self._arrived: deque[memoryview] = deque()
        self._has_ended = False
        self._loss: Loss | None = None
        # This side sends no more, and takes no more.
        self._is_silent = self._is_deaf = False
        self._reading = Waiting("bytes of a connection")
        self._writing = Waiting("room in a connection")
        # Bytes that this side has sent, and the other one has not taken.
        self._untaken = 0

    # -- told between tasks

    def arrive(self, part: memoryview) -> None:
        """Bytes have come."""
        self._arrived.append(part)
        self._reading.wake()

    def closed(self) -> None:
        """As `ended`; what is sent from now on breaks it."""
        self.ended()

    def ended(self) -> None:
        """The other side sends no more."""
        self._has_ended = True
        self._reading.wake()

    def lost(self, loss: Loss) -> None:
        """Take in that the connection is lost; what has arrived is still to be read."""
        self._loss = loss
        self._reading.wake()
        self._writing.wake()

    # -- sending

    def send(self, data: bytes, patience: Patience, *, all_of_it: bool) -> int:
        """Send `data`, or as much as there is room for; how much was sent.

        Raises:
            OSError: the connection is lost, or this side has ended it.
            TimeoutError: there was no room in time.
        """
        scheduler = RUNNING()
        view = memoryview(data)
        sent = 0
        while True:
            self._check()
            part = view[sent : sent + _ROOM_BYTES - self._untaken]
            if len(part):
                self._put(part)
                sent += len(part)
            if sent == len(view) or (sent and not all_of_it and (patience.is_bounded or self._is_interrupted())):
                break
            patience.check()
            self._writing.wait(patience.until_s)
        scheduler.point(_SENDING)
        return sent

    def _is_interrupted(self) -> bool:
        """Whether a call of the kernel's ends before all is done, as by a signal."""
        network = self.end.out.network
        return network.chance.random() < network.interrupted

    def _check(self) -> None:
        if self._loss is not None:
            # It is told once; who sends on sends into a pipe that nobody reads.
            if self._is_silent:
                raise error(errno.EPIPE)
            self._is_silent = True
            raise error(errno.ETIMEDOUT if self._loss is Loss.TIMEOUT else errno.ECONNRESET)
        if self._is_silent or self.end.is_gone:
            raise error(errno.EPIPE)

    def _put(self, part: memoryview) -> None:
        self._untaken += len(part)
        other = self._other()
        network = self.end.out.network
        send = self.end.out.send
        if len(part) > 1 and network.chance.random() < _PARTED:
            cut = network.chance.randrange(1, len(part))
            send(partial(other.arrive, part[:cut]))
            part = part[cut:]
        send(partial(other.arrive, part))

    def _other(self) -> Stream:
        return cast(Stream, self.end.peer.handler)

    # -- receiving

    def receive(self, place: memoryview, patience: Patience, *, all_of_it: bool = False, peeks: bool = False) -> int:
        """Fill `place` with what is there, or wait for some; 0 where the other side has ended.

        Raises:
            OSError: the connection is lost.
            TimeoutError: nothing came in time.
        """
        scheduler = RUNNING()
        scheduler.point(_RECEIVING)
        if peeks:
            return self._peek(place, patience)
        filled = 0
        while filled < len(place):
            if self._arrived:
                filled += self._take(place[filled:])
            elif filled and (patience.is_bounded or not all_of_it or self._is_interrupted()):
                break
            elif self._loss is not None:
                if filled or self._loss is Loss.CLOSED:
                    break
                self._tell_loss()
            elif self._has_ended or self._is_deaf:
                break
            else:
                patience.check()
                self._reading.wait(patience.until_s)
        return filled

    def _peek(self, place: memoryview, patience: Patience) -> int:
        while not (self._arrived or self._has_ended or self._is_deaf):
            if self._loss is Loss.CLOSED:
                return 0
            if self._loss is not None:
                self._tell_loss()
            patience.check()
            self._reading.wait(patience.until_s)
        seen = b"".join(self._arrived)[: len(place)]
        place[: len(seen)] = seen
        return len(seen)

    def _tell_loss(self) -> None:
        """Tell of the loss, once: later there is an end."""
        loss, self._loss = self._loss, Loss.CLOSED
        self._is_silent = True
        raise error(errno.ETIMEDOUT if loss is Loss.TIMEOUT else errno.ECONNRESET)

    def _take(self, place: memoryview) -> int:
        part = self._arrived[0]
        size = min(len(part), len(place))
        place[:size] = part[:size]
        if size == len(part):
            self._arrived.popleft()
        else:
            self._arrived[0] = part[size:]
        other = self.end.peer.handler
        if isinstance(other, Stream):
            other.taken(size)
        return size

    def taken(self, size: int) -> None:
        """The other side has taken so many bytes."""
        self._untaken -= size
        self._writing.wake()

    # -- ending

    def end_sending(self) -> None:
        """Send no more: the other side learns that behind all that was sent."""
        if not (self._is_silent or self.end.is_gone):
            self._is_silent = True
            self.end.out.send(lambda: self._other().ended())
        self._writing.wake()

    def end_receiving(self) -> None:
        """Take no more than has arrived."""
        self._is_deaf = True
        self._reading.wake()

    @property
    def is_connected(self) -> bool:
        """Whether the connection is there, as far as this side knows."""
        return not self.end.is_gone

    @property
    def has_unread(self) -> bool:
        """Whether something has arrived that nobody has taken."""
        return bool(self._arrived)

    def close(self) -> None:
        """Have it no more: the other side learns of an end, or of a loss where something has not been taken."""
        if self._arrived:
            self.end.reset()
        elif self._is_silent:
            self.end.leave()
        else:
            self.end.close()


def error(number: int) -> OSError:
    """The OSError of that number, of the class that belongs to it."""
    return OSError(number, os.strerror(number))
