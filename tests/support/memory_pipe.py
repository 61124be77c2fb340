"""A pipe between two ends in one process."""

from __future__ import annotations

from taihu.core.base.errors import MemberLostError, TaihuError
from taihu.core.system.threads import spawn
from taihu.core.wire.links.inbox import Inbox
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents


class MemoryPipe:
    """One end of a pipe, which `join_by_memory` joins to the other one; see `SocketPipe`."""

    def __init__(self, out: Outbox, inbox: Inbox, events: PipeEvents) -> None:
        self.out = out
        self.inbox = inbox
        self._events = events
        self._closed = False

    def stop(self) -> None:
        """Send nothing any more; returns at once."""
        self.out.stop()

    def close(self) -> None:
        """Cut both directions; nothing is told any more."""
        self._closed = True
        self.stop()

    def lost(self, error: TaihuError) -> None:
        """The pipe broke, or brought what it must not."""
        if not self._closed:
            self._events.lost(error)

    def ended(self) -> None:
        """The other side has ended its direction."""
        if not self._closed:
            self._events.ended()


def join_by_memory(first: MemoryPipe, second: MemoryPipe) -> None:
    """Let the frames of each end come to the other one, by a thread for each direction."""
    for sending, receiving in ((first, second), (second, first)):
        spawn("memory-pipe", _carry, sending, receiving)


def _carry(sending: MemoryPipe, receiving: MemoryPipe) -> None:
    try:
        for message in sending.out.messages():
            receiving.inbox.take_message(message)
        receiving.ended()
    except MemberLostError as error:
        sending.lost(error)
        receiving.lost(MemberLostError(f"{receiving.inbox.origin.name} was lost: its connection broke"))
    except TaihuError as error:
        receiving.lost(error)
    finally:
        sending.out.over()
