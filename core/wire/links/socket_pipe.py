"""A pipe on a connection of its own (see `connection`): frames go straight from one arena into another."""

from __future__ import annotations

from contextlib import suppress

from taihu.core.base.errors import MemberLostError, RunError, TaihuError
from taihu.core.system.threads import current_thread, make_thread
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES
from taihu.core.wire.links.connection import MOST_PIECES, Connection
from taihu.core.wire.links.inbox import Inbox
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents


class SocketPipe:
    """Frames on a connection, by a thread for each direction.

    Args:
        connection: belongs to this object.
        out: the frames to the other side.
        inbox: takes the frames of the other side, from now on.
        events: are told until `close`.
    """

    def __init__(self, connection: Connection, out: Outbox, inbox: Inbox, events: PipeEvents) -> None:
        self.out = out
        self.inbox = inbox
        self._closed = self._stopped = self._has_ended = False
        self._farewell_s = inbox.origin.patience.farewell_s
        self._events = events
        self._connection = connection
        self._sending = make_thread("direct-send", self._send)
        self._receiving = make_thread("direct-receive", self._receive)
        self._sending.start()
        self._receiving.start()

    def stop(self) -> None:
        """Send nothing any more but the rest of the frame that is under way; returns at once."""
        self._stopped = True
        self.out.stop()

    def finish(self) -> None:
        """Send what is to go, and end this direction; returns then, or when the other side takes too long."""
        self.out.end()
        self._sending.join(self._farewell_s)
        if self._sending.is_alive():
            self._stopped = True
            self._connection.cut()
            self._sending.join()

    def drain(self) -> None:
        """Return when everything that the other side sent has been taken, and it has ended its direction."""
        self._receiving.join()

    def close(self) -> None:
        """Cut both directions; nothing is told any more."""
        self._closed = True
        self.stop()
        self._connection.cut()
        if self._receiving is not current_thread():
            self._receiving.join()
        self.finish()

    def _send(self) -> None:
        name = self.inbox.origin.name
        try:
            for buffers in self.out.frames(MOST_PIECES):
                self._connection.write(buffers)
        except OSError:
            if not self._stopped:
                self._cannot_send(MemberLostError(f"{name} was lost: its connection broke"))
        except TaihuError as error:
            # Before anybody is told, who may wait for the other side's word. It ends the way back.
            with suppress(OSError):
                self._connection.end()
            self._cannot_send(error)
        except BaseException as error:
            self._lost(RunError(f"internal error while sending to {name}: {error!r}"))
            raise
        finally:
            with suppress(OSError):
                self._connection.end()
            self._connection.close_writing()
            self.out.over()

    def _receive(self) -> None:
        name = self.inbox.origin.name
        header = memoryview(bytearray(HEADER_BYTES))
        try:
            while self.inbox.take_from(self._connection.read_into, header):
                pass
            self._has_ended = True
            if not self._closed:
                self._events.ended()
        except TaihuError as error:
            self._lost(error)
            self._discard()
        except OSError:
            self._lost(MemberLostError(f"{name} was lost: its connection broke"))
        except BaseException as error:
            self._lost(RunError(f"internal error while taking in a frame of {name}: {error!r}"))
            raise
        finally:
            self._connection.close_reading()

    def _discard(self) -> None:
        """Read on to the end: the other side shall hear the reason over gRPC, not of a connection that breaks."""
        with suppress(OSError):
            while self._connection.skip(self.inbox.room(MAX_PAYLOAD_BYTES).data):
                pass

    def _lost(self, error: TaihuError) -> None:
        if not self._closed:
            self._events.lost(error)

    def _cannot_send(self, error: TaihuError) -> None:
        # Who has ended its direction has all it wants, and may cut the other before the last word on it comes.
        if not (self._has_ended and isinstance(error, MemberLostError)):
            self._lost(error)
