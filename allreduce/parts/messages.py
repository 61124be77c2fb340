"""Messages from one rank to another one: what only two of them know of, in the order in which it is sent.

A message has a tag, and is cut into frames that arrive in order. One that nobody has asked for yet waits for its
receive. A receive takes the first message with its tag of its sender, or of whoever sends one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.fence import Held, waiting_bytes
from taihu.core.base.errors import FrameError
from taihu.core.planner.partition import slice_bounds
from taihu.core.wire.frames.headers import Address, At, FrameHeader, ValueType
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.frames.kinds import ActivationPart

MESSAGES: Final = 0
"""The number of messages in the place of a transfer's, which count from 1."""
_FRAME_BYTES: Final = 1 << 20

Values = NDArray[Any]


class Send(Protocol):
    """Queues a frame for a rank."""

    def __call__(self, rank: int, header: FrameHeader, pieces: Sequence[Values]) -> None:
        """Queue it."""
        ...


class After(Protocol):
    """Says what is called when all frames to a rank have been taken."""

    def __call__(self, rank: int, callback: Callable[[], None]) -> None:
        """Queue it."""
        ...


@dataclass(eq=False)
class Receive:
    """A place for one message.

    Attributes:
        values: shape (n,), uint16, contiguous and writable; the message has as many.
        sender: the rank that sends it, None for any; then whoever did.
        tag: the message's.
        on_finished: called, by any thread, when the message is in `values`.
    """

    values: NDArray[np.uint16]
    sender: int | None
    tag: int
    on_finished: Callable[[], None] = lambda: None

    def takes(self, sender: int, tag: int) -> bool:
        """Whether a message of this sender with this tag is meant."""
        return self.tag == tag and self.sender in (None, sender)


@dataclass(eq=False)
class _Message:
    """A message that arrives; without a receive, what has come of it lies in `parts`."""

    sender: int
    tag: int
    receive: Receive | None = None
    parts: list[Values] = field(default_factory=list)
    arrived: int = 0
    frames: int = 0
    waiting: int = 0
    complete: bool = False

    @property
    def label(self) -> str:
        return f"worker {self.sender} sent a message with tag {self.tag}"

    def bind(self, receive: Receive) -> None:
        """Bring it to `receive`, what has arrived already too; raises FrameError where it does not fit."""
        self._check(receive, self.arrived)
        receive.sender = self.sender
        self.receive = receive
        done = 0
        for part in self.parts:
            receive.values[done : done + len(part)] = part
            done += len(part)
        self.parts.clear()

    def place(self, header: FrameHeader) -> Values | None:
        """The place of a frame's values; raises FrameError when it does not fit."""
        offset, count = header.address.offset, header.address.elements
        if offset != self.arrived or header.value_type is not ValueType.FP16:
            raise FrameError(f"{self.label}: values at {offset}, expected {self.arrived}")
        if self.receive is None:
            return None
        if offset + count > len(self.receive.values):
            raise self._unfit(self.receive, f"{offset + count} or more")
        return self.receive.values[offset : offset + count]

    def arrive(self, header: FrameHeader) -> None:
        """A frame is there; raises FrameError when the message ends too soon for its receive."""
        self.arrived += header.address.elements
        self.frames += 1
        self.complete = self.frames == header.expect(ActivationPart).frames
        if self.receive is not None:
            self._check(self.receive, self.arrived)

    def _check(self, receive: Receive, arrived: int) -> None:
        if arrived > len(receive.values) or (self.complete and arrived != len(receive.values)):
            raise self._unfit(receive, str(arrived))

    def _unfit(self, receive: Receive, seen: str) -> FrameError:
        return FrameError(f"{self.label}: {seen} values of 16 bits, the receive expects {len(receive.values)}")


class MessagesMesh:
    """The messages of one rank that are under way; `held` counts what nobody has asked for. Not thread-safe."""

    def __init__(self, identity: WorkerIdentity, send: Send, after: After, held: Held) -> None:
        self._identity = identity
        self._send = send
        self._after = after
        self._posted: list[Receive] = []
        # The message of each sender of which frames are to come, and all that have no receive, as they came.
        self._arriving: dict[int, _Message] = {}
        self._early: list[_Message] = []
        self._held = held

    def send(self, rank: int, tag: int, values: NDArray[np.uint16], on_sent: Callable[[], None]) -> None:
        """Send `values` (shape (n,), contiguous); `on_sent` is called when they may be written to again."""
        frames = max(1, -(-values.nbytes // _FRAME_BYTES))
        for frame in range(frames):
            start, stop = slice_bounds(len(values), frames, frame)
            address = Address(At(0, tag), MESSAGES, start, stop - start)
            header = FrameHeader(self._identity.sender, address, ActivationPart(frames), value_type=ValueType.FP16)
            self._send(rank, header, [values[start:stop]])
        self._after(rank, on_sent)

    def post(self, receive: Receive) -> bool:
        """Wait for a message; returns whether it has arrived already.

        Raises:
            FrameError: it has another size.
        """
        for message in self._early:
            if receive.takes(message.sender, message.tag):
                self._early.remove(message)
                self._held[message.sender] -= message.waiting
                message.bind(receive)
                return message.complete
        self._posted.append(receive)
        return False

    def awaits(self, rank: int | None) -> bool:
        """Whether a receive needs something of `rank`; of whoever sends something, with None."""
        bound = None if rank is None else self._arriving.get(rank)
        return bound is not None or any(receive.sender == rank for receive in self._posted)

    def has_begun(self, header: FrameHeader) -> bool:
        """Whether somebody has asked for a frame's message."""
        sender = _rank_of(header)
        message = self._arriving.get(sender)
        if message is not None:
            return message.receive is not None
        return any(receive.takes(sender, header.address.at.step) for receive in self._posted)

    def places(self, header: FrameHeader) -> Sequence[Values] | None:
        """The place of a frame's values, once somebody has asked for its message; raises FrameError as `take`."""
        place = self._message_of(header).place(header)
        return None if place is None else [place]

    def take(self, header: FrameHeader, values: Values | None) -> Receive | None:
        """Take notice of a frame, whose `values` are None when they lie in their place.

        Returns:
            The receive that is complete by it, if one is.

        Raises:
            FrameError: it is not the next one of its sender, or its message has another size than its receive.
        """
        message = self._message_of(header)
        place = message.place(header)
        if values is not None:
            if place is None:
                message.parts.append(values.copy())
                self._wait(message, values.nbytes)
            else:
                place[:] = values
        message.arrive(header)
        if not message.complete:
            return None
        del self._arriving[message.sender]
        return message.receive

    def _message_of(self, header: FrameHeader) -> _Message:
        """The message that a frame belongs to; with its first frame it finds its receive, or waits for one."""
        sender, tag = _rank_of(header), header.address.at.step
        message = self._arriving.get(sender)
        if message is not None:
            if message.tag != tag:
                raise FrameError(f"{message.label}: expected the rest of it, got one with tag {tag}")
            return message
        message = self._arriving[sender] = _Message(sender, tag)
        for receive in self._posted:
            if receive.takes(sender, tag):
                self._posted.remove(receive)
                message.bind(receive)
                return message
        self._early.append(message)
        self._wait(message, 0)
        return message

    def _wait(self, message: _Message, size: int) -> None:
        message.waiting += waiting_bytes(size)
        self._held[message.sender] += waiting_bytes(size)


def _rank_of(header: FrameHeader) -> int:
    return -1 if header.sender.rank is None else header.sender.rank
