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
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.checksums import crc32c_by_table, header_checksum
from support.flips import flipped, wired
from support.frames import header_of

from taihu.core.base.errors import DamagedFrameError, TaihuError
from taihu.core.wire.frames.format import read_message
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.direct_header import HEADER_BYTES
from taihu.core.wire.frames.headers import Frame, FrameHeader
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Question
from taihu.core.wire.links.direct_frames import DirectSender
from taihu.core.wire.links.socket_pipe import SocketPipe
from taihu.core.wire.links.inbox import Origin, Sink
from taihu.core.wire.links.stream import StreamReader
from taihu.protos import tensor_pb2

VALUES = [np.full(count, count, dtype=np.float32) for count in (40, 300, 7)]
FRAMES: list[tuple[FrameHeader, list[NDArray[Any]]]] = [
    (header_of("job", 1, 1, 1, 0, 0, 40, 0), VALUES[:1]),
    (header_of("job", 1, 1, 1, 0, 40, 300, 0), VALUES[1:2]),
    (header_of("job", 1, 1, 1, 0, 1, 9, 0, encoding=Encoding.NONE, kind=Question()), []),
    (
        header_of("job", 1, 1, 1, 0, 2, 90, 0, encoding=Encoding.SPARSE, selected=7),
        [VALUES[2], np.arange(9, dtype=np.uint8)],
    ),
    (header_of("job", 1, 1, 1, 0, 3, 9, 0, encoding=Encoding.SHARED), []),
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
        origins = [Origin("worker 0", Sender("job", 1, 0), "server 0"), Origin("server 0", Sender("job", 0))]
        receiving = FrameConnection(far, origins[0], receiver.sink, receiver.fail)
        sending = FrameConnection(near, origins[1], sender.sink, sender.fail)
        for header, pieces in FRAMES:
            sending.send(header, pieces)
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


def read(message: bytes) -> tuple[FrameHeader, bytes]:
    frame = read_frame(message)
    return frame.header, frame.values.tobytes() + frame.sections.tobytes()


def refuses(message: bytes) -> bool:
    try:
        read_frame(message)
    except DamagedFrameError:
        return True
    return False


MESSAGES = [encode_frame(header, pieces) for header, pieces in FRAMES]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(MESSAGES) - 1), st.integers(0, 10**6))
def test_a_frame_of_a_stream_that_comes_damaged_names_the_link(frame: int, bit: int) -> None:
    damaged = flipped(MESSAGES[frame], bit % (8 * len(MESSAGES[frame])))
    assume(refuses(damaged))
    reader = StreamReader(Origin("worker 0", Sender("job", 1, 0), "server 0"))
    for message in MESSAGES[:frame]:
        assert reader.read(message) is not None
    with pytest.raises(DamagedFrameError, match=f"^the link from worker 0 to server 0: frame {frame} came damaged: "):
        reader.read(damaged)


def test_every_bit_of_a_message_is_covered() -> None:
    for message, (header, payload) in zip(MESSAGES, SENT, strict=True):
        for bit in range(8 * len(message)):
            # Of the few bytes around header and payload some say the same in two ways.
            assert refuses(flipped(message, bit)) or read(flipped(message, bit)) == (header, payload)


def test_the_checksums_of_a_message_are_those_of_its_definition() -> None:
    for message, (_, payload) in zip(MESSAGES, SENT, strict=True):
        frame = tensor_pb2.Frame.FromString(message)
        assert frame.header.payload_checksum == crc32c_by_table(payload)
        assert frame.header.checksum == header_checksum(frame.header)


def test_a_frame_within_a_message_is_checked() -> None:
    for change in ("payload", "header"):
        frame = tensor_pb2.Frame.FromString(MESSAGES[0])
        if change == "payload":
            frame.payload = flipped(frame.payload, 77)
        else:
            frame.header.address.offset += 1
        with pytest.raises(DamagedFrameError):
            frame_from_message(frame)
        with pytest.raises(DamagedFrameError):
            decode_frame(frame.SerializeToString())


@pytest.mark.parametrize("last", ["give up", "queue", "break"])
def test_whoever_waits_until_all_has_been_read_is_told_when_the_other_side_has_left(last: str) -> None:
    """It leaves, its connection is cut, and somebody begins to wait, in any order."""
    near, far = socket.socketpair()
    broke, told = threading.Event(), threading.Event()
    sender = DirectSender(near, "worker 1", lambda error: broke.set())

    def cut() -> None:
        far.close()
        while not broke.wait(0.01):
            sender.send(*FRAMES[0])

    steps = {"give up": sender.give_up, "queue": lambda: sender.after(told.set), "break": cut}
    for name in sorted(steps, key=lambda name: (name == last, name)):
        assert not told.is_set()
        steps[name]()
    assert told.wait(120)
    sender.close(20)
