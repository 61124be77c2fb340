"""Pipes: the ways of frames between two processes.

A pipe has an `Outbox`, of what is to go, and an `Inbox`, which hands what has come to a `Sink`; between them it moves
bytes. There are a stream of gRPC and a connection of TCP; tests have one in memory.

- **Ordering**: frames come in the order in which they were put, but that urgent ones overtake what has not begun.
  Each comes once and whole, or the pipe ends.
- **Ownership**: the arrays of a frame belong to the pipe until a callback that was put behind them (`Outbox.after`)
  is called. Arrays that a sink gave as places belong to the pipe until the sink takes them.
- **Failure**: whatever breaks a pipe is told once, by `PipeEvents.lost`, unless this side has closed it: a
  MemberLostError where the other side is gone, a DamagedFrameError or FrameError where it sent what it must not.
  Nothing is handed to the sink after that, and nobody is left waiting in the outbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from taihu.core.base.errors import TaihuError
from taihu.core.wire.frames.headers import FrameHeader
from taihu.core.wire.links.inbox import Inbox
from taihu.core.wire.links.outbox import Outbox

Carrier = Literal["grpc", "tcp"]
"""The gRPC stream, or a connection of its own."""


@dataclass(frozen=True)
class PipeEvents:
    """Events of a pipe until this side closes it: it broke, or the other side ended it between two frames."""

    lost: Callable[[TaihuError], None]
    ended: Callable[[], None] = lambda: None


class Pipe(Protocol):
    """One end of a pipe; see the module for order, ownership and failure."""

    @property
    def out(self) -> Outbox:
        """The frames to the other side."""

    @property
    def inbox(self) -> Inbox:
        """The frames of the other side."""

    def stop(self) -> None:
        """Send nothing any more but the rest of the frame that is under way; returns at once."""

    def close(self) -> None:
        """Cut both directions; nothing is told any more."""


class FrameWay(Protocol):
    """The way of frames to another process, whatever pipe it takes: `FrameLink`, or one of sizes and prices alone."""

    def carry(self, carrier: Carrier) -> None:
        """Send frames by `carrier` from now on, if it is there."""

    def send(self, header: FrameHeader, pieces: Sequence[NDArray[Any]], *, urgent: bool = False) -> None:
        """Queue a frame; the arrays are read when its turn comes, and must not change until then (see `after`)."""

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Call `callback` when all frames queued so far, as urgent, are read."""
