"""Any bit of a frame may come turned, on a connection and in a stream: that ends the link, with its name."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.flips import flipped, wired
from support.frames import header_of

from taihu.core.base.errors import DamagedFrameError, FrameError, TaihuError
from taihu.core.wire.frames.format import HEADER_BYTES, message_of
from taihu.core.wire.frames.headers import Frame, FrameHeader
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Question
from taihu.core.wire.links.connection import PlainConnection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe

VALUES = [np.full(count, count, dtype=np.float32) for count in (40, 300, 7)]
FRAMES: list[tuple[FrameHeader, list[NDArray[Any]]]] = [
    (header_of(1, 1, 1, 0, 0, 40, 0), VALUES[:1]),
    (header_of(1, 1, 1, 0, 40, 300, 0), VALUES[1:2]),
    (header_of(1, 1, 1, 0, 1, 9, 0, encoding=Encoding.NONE, kind=Question()), []),
    (
        header_of(1, 1, 1, 0, 2, 90, 0, encoding=Encoding.SPARSE, selected=7),
        [VALUES[2], np.arange(9, dtype=np.uint8)],
    ),
    (header_of(1, 1, 1, 0, 3, 9, 0, encoding=Encoding.SHARED), []),
]
SENT = [(header, b"".join(piece.tobytes() for piece in pieces)) for header, pieces in FRAMES]
SIZES = [HEADER_BYTES + len(payload) for _, payload in SENT]
Taken = list[tuple[FrameHeader, bytes]]


class Receiver:
    """Takes frames; every other dense one in a place of its own."""

    def __init__(self) -> None:
        self.taken: Taken = []
        self.errors: SimpleQueue[TaihuError] = SimpleQueue()
        self.complete = threading.Event()
        self.lent = 0
        self.sink = Sink((Gradients, Question), places=self._places, take=self._take, take_frame=self._take_frame)

    def _places(self, header: FrameHeader) -> list[NDArray[Any]] | None:
        if not header.address.offset:
            return None
        self.lent += 1
        count = header.address.elements
        return [np.empty(count // 3, dtype=np.float32), np.empty(count - count // 3, dtype=np.float32)]

    def _take(self, header: FrameHeader, values: Sequence[NDArray[Any]], in_place: bool) -> None:
        self._put(header, b"".join(each.tobytes() for each in values))

    def _take_frame(self, frame: Frame) -> None:
        self._put(frame.header, frame.values.tobytes() + frame.sections.tobytes())

    def _put(self, header: FrameHeader, payload: bytes) -> None:
        self.taken.append((header, payload))
        if len(self.taken) == len(SENT):
            self.complete.set()

    def fail(self, error: TaihuError) -> None:
        self.errors.put(error)
        self.complete.set()


@contextmanager
def sent_over(there: Sequence[int]) -> Iterator[Receiver]:
    """All frames sent over a connection that turns bits, until they have been taken or an error is told."""
    receiver, sender = Receiver(), Receiver()
    with wired(there) as (near, far):
        origins = [Origin("worker 0", Sender(1, 0), "server 0"), Origin("server 0", Sender(0))]
        receiving = SocketPipe(
            PlainConnection(far), Outbox("worker 0"), Inbox(origins[0], receiver.sink), PipeEvents(receiver.fail)
        )
        sending = SocketPipe(
            PlainConnection(near), Outbox("server 0"), Inbox(origins[1], sender.sink), PipeEvents(sender.fail)
        )
        for header, pieces in FRAMES:
            sending.out.send(header, pieces)
        assert receiver.complete.wait(120)
        yield receiver
        sending.close()
        receiving.close()


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 8 * sum(SIZES) - 1))
def test_any_bit_of_a_connection_that_comes_turned_ends_it_and_names_the_link(bit: int) -> None:
    frame = next(number for number in range(len(SIZES)) if bit < 8 * sum(SIZES[: number + 1]))
    with sent_over([bit]) as receiver:
        error = receiver.errors.get(timeout=120)
        assert isinstance(error, DamagedFrameError)
        assert str(error).startswith(f"the link from worker 0 to server 0: frame {frame} came damaged: ")
        assert receiver.taken == SENT[:frame]


def test_frames_of_a_connection_are_taken_where_they_belong() -> None:
    with sent_over([]) as receiver:
        assert receiver.errors.empty()
        assert receiver.taken == SENT
        assert receiver.lent == 1


MESSAGES = [message_of(header, pieces, number) for number, (header, pieces) in enumerate(FRAMES)]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(MESSAGES) - 1), st.integers(0, 10**6))
def test_any_bit_of_a_message_that_comes_turned_names_the_link(frame: int, bit: int) -> None:
    receiver = Receiver()
    inbox = Inbox(Origin("worker 0", Sender(1, 0), "server 0"), receiver.sink)
    for message in MESSAGES[:frame]:
        inbox.take_message(message)
    with pytest.raises(DamagedFrameError, match=f"^the link from worker 0 to server 0: frame {frame} came damaged: "):
        inbox.take_message(flipped(MESSAGES[frame], bit % (8 * len(MESSAGES[frame]))))
    assert receiver.taken == SENT[:frame]


def test_a_number_that_is_left_out_names_the_link() -> None:
    receiver = Receiver()
    inbox = Inbox(Origin("worker 0", Sender(1, 0), "server 0"), receiver.sink)
    for number in range(600):
        header = header_of(1, 1, 1, 0, number, 1, 0)
        for _ in range(2):
            inbox.take_message(message_of(header, [np.ones(1, dtype=np.float32)], number))
        for other in (number + 2, number - 1):
            with pytest.raises(
                FrameError,
                match=f"^the link from worker 0 to server 0: another frame than number {number + 1} came",
            ):
                inbox.take_message(message_of(header, [np.ones(1, dtype=np.float32)], other))
    assert [header.address.offset for header, _ in receiver.taken] == list(range(600))


@pytest.mark.parametrize("last", ["give up", "queue", "break"])
def test_whoever_waits_until_all_has_been_read_is_told_when_the_other_side_has_left(last: str) -> None:
    """It leaves, its connection is cut, and somebody begins to wait, in any order."""
    near, far = socket.socketpair()
    told = threading.Event()
    origin, nothing = Origin("worker 1", Sender(1, 1)), Receiver().sink
    pipe = SocketPipe(
        PlainConnection(near), Outbox("worker 1"), Inbox(origin, nothing), PipeEvents(lambda error: None)
    )

    def cut() -> None:
        far.close()
        while pipe._sending.is_alive():
            pipe.out.send(*FRAMES[0])
            pipe._sending.join(0.01)

    steps = {"give up": pipe.out.give_up, "queue": lambda: pipe.out.after(told.set), "break": cut}
    for name in sorted(steps, key=lambda name: (name == last, name)):
        assert not told.is_set()
        steps[name]()
    assert told.wait(120)
    pipe.close()
