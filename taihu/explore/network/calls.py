"""Things that both sides of a gRPC call have in common."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import grpc

from taihu.explore.stand_ins.waiting import Waiting

__all__ = [
    "DEFAULT_MOST_BYTES",
    "Inbox",
    "Metadata",
    "Metadatum",
    "Method",
    "Status",
    "address_of",
    "metadata_of",
    "serialized",
]

_LOG: Final = logging.getLogger(__name__)

DEFAULT_MOST_BYTES: Final = 4 << 20
"""The largest message that is taken, where no option says so."""
_WINDOW_BYTES: Final = 128 << 10


class Metadatum(NamedTuple):
    """One item of metadata, as gRPC hands it out."""

    key: str
    value: str | bytes


Metadata = tuple[Metadatum, ...]


class Status(NamedTuple):
    """The end of a call."""

    code: grpc.StatusCode
    details: str
    trailing: Metadata


class Method:
    """A method of a service, and the labels of its messages in stories.

    Args:
        path: `/package.Service/Name`.
    """

    __slots__ = ("name", "path", "receiving", "sending")

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = path.rsplit("/", 1)[-1]
        self.sending = f"send {self.name}"
        self.receiving = f"receive {self.name}"


class Inbox:
    """Messages of one direction of a call: those that have arrived, and how many bytes nobody has taken.

    Attributes:
        has_ended: whether all messages have arrived.
        waiting: who waits for a message.
        room: who waits until messages have been taken.
    """

    __slots__ = ("_arrived", "_unread_bytes", "has_ended", "room", "waiting")

    def __init__(self, label: str) -> None:
        self.waiting = Waiting(label)
        self.has_ended = False
        self.room = Waiting("room in a stream")
        self._arrived: deque[bytes] = deque()
        self._unread_bytes = 0

    def __len__(self) -> int:
        return len(self._arrived)

    def has_room(self, size: int) -> bool:
        """Whether a message of `size` may be sent, which takes its room; else `room` is waited for."""
        if self._unread_bytes and self._unread_bytes + size > _WINDOW_BYTES:
            return False
        self._unread_bytes += size
        return True

    def arrive(self, message: bytes) -> None:
        """A message has come."""
        self._arrived.append(message)
        self.waiting.wake()

    def end(self) -> None:
        """No message will come."""
        self.has_ended = True
        self.waiting.wake()

    def take(self) -> bytes:
        """The next message; there is one."""
        message = self._arrived.popleft()
        self._unread_bytes -= len(message)
        self.room.wake()
        return message


def metadata_of(given: Iterable[Any] | None) -> Metadata:
    """Metadata as it arrives.

    Raises:
        ValueError: a key is none.
    """
    return tuple(Metadatum(key, value) for key, value in given or ())


def serialized(message: Any, serialize: Callable[[Any], bytes] | None) -> bytes | None:
    """The bytes of a message; None where it has none."""
    if serialize is None:
        return bytes(message)
    try:
        return serialize(message)
    except Exception:
        _LOG.exception("Exception serializing message!")
        return None


def address_of(target: str) -> tuple[str, int]:
    """Host and port of `host:port`."""
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)
