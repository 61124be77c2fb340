"""Any bit of a frame may come turned, on a connection and in a stream: it is refused, and repeated once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
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
from taihu.core.wire.codec import decode_frame, encode_frame, frame_from_message, read_frame
from taihu.core.wire.direct_frames import DirectSender
from taihu.core.wire.direct_header import HEADER_BYTES, pack_header
from taihu.core.wire.frame_link import FrameConnection
from taihu.core.wire.headers import Frame, FrameHeader
from taihu.core.wire.identity import Sender
from taihu.core.wire.kinds import Encoding, Gradients, Question, Repetition
from taihu.core.wire.repetition import control_header
from taihu.core.wire.sink import Origin, Sink
from taihu.core.wire.stream import StreamReader, StreamSender
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
MARKER_BYTES = HEADER_BYTES
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
def sent_over(there: Sequence[int], back: Sequence[int] = ()) -> Iterator[Receiver]:
    """All frames sent over a connection that turns bits, until they have been taken or an error is told."""
    receiver, sender = Receiver(), Receiver()
    with wired(there, back) as (near, far):
        origins = [Origin("worker 0", Sender("job", 1, 0), "server 0"), Origin("server 0", Sender("job", 0))]
        receiving = FrameConnection(far, origins[0], receiver.sink, receiver.fail)
        sending = FrameConnection(near, origins[1], sender.sink, sender.fail)
        for header, pieces in FRAMES:
            sending.send(header, pieces)
        assert receiver.complete.wait(120)
        yield receiver
        sending.close()
        receiving.close()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 8 * sum(SIZES) - 1))
def test_any_bit_of_a_connection_may_come_turned(bit: int) -> None:
    with sent_over([bit]) as receiver:
        assert receiver.errors.empty()
        assert receiver.taken == SENT
        assert receiver.lent == 1


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 8 * SIZES[0] - 1), st.integers(0, 8 * SIZES[0] - 1))
def test_a_frame_of_a_connection_that_comes_damaged_twice_names_the_link(first: int, second: int) -> None:
    """All frames may be under way before the first one is asked for again: the last is held back for that."""
    receiver = Receiver()
    with wired([first, 8 * (SIZES[0] + MARKER_BYTES) + second]) as (near, far):
        ends = Origin("worker 0", Sender("job", 1, 0), "server 0"), Origin("server 0", Sender("job", 0))
        receiving = FrameConnection(far, ends[0], receiver.sink, receiver.fail)
        sending = FrameConnection(near, ends[1], receiver.sink, lambda error: None)
        sending.send(*FRAMES[0])
        told = receiver.errors.get(timeout=120)
        assert isinstance(told, DamagedFrameError)
        assert str(told).startswith("the link from worker 0 to server 0: frame 0 came damaged twice: ")
        assert not receiver.taken
        sending.close()
        receiving.close()


@settings(deadline=None, max_examples=20)
@given(st.integers(8 * HEADER_BYTES, 8 * SIZES[0] - 1), st.integers(0, 8 * HEADER_BYTES - 1))
def test_the_question_may_come_damaged_too(bit: int, of_question: int) -> None:
    with sent_over([bit], [of_question]) as receiver:
        assert receiver.errors.empty()
        assert receiver.taken == SENT


def test_bytes_that_look_like_a_repetition_are_values() -> None:
    """They come in a frame whose values do not count, before the question is answered."""
    marker = np.frombuffer(pack_header(control_header(Repetition(1)), 0, 0), dtype=np.uint8)
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    receiver = Receiver()
    ends = Origin("worker 0", Sender("job", 1, 0), "server 0"), Origin("server 0", Sender("job", 0))
    receiving = FrameConnection(far, ends[0], receiver.sink, receiver.fail)
    sending = FrameConnection(near, ends[1], receiver.sink, receiver.fail)
    for header, pieces in FRAMES[:-1]:
        sending.send(header, pieces)
    header = header_of("job", 1, 1, 1, 0, 0, len(marker) // 4, 0)
    sending.send(header, [marker.view(np.float32)])
    assert receiver.complete.wait(120)
    assert receiver.taken == [*SENT[:-1], (header, marker.tobytes())]
    sending.close()
    receiving.close()


class Stream:
    """Two sides of a stream in this thread; `change(number, message)` makes what arrives of what is sent there."""

    def __init__(self, change: Callable[[int, bytes], bytes]) -> None:
        self.taken: Taken = []
        self._change = change
        self._sender, self._back = StreamSender("server 0"), StreamSender("worker 0")
        self._reader = StreamReader(Origin("worker 0", Sender("job", 1, 0), "server 0"), self._back, self._late)
        self._hearer = StreamReader(Origin("server 0", Sender("job", 0), "worker 0"), self._sender, self._late)

    def _late(self, error: TaihuError) -> None:
        raise AssertionError(error)

    def run(self) -> None:
        for header, pieces in FRAMES:
            self._sender.send(header, pieces)
        try:
            for number, message in enumerate(self._passing()):
                frame = self._reader.read(self._change(number, message))
                if frame is not None:
                    payload = frame.values.tobytes() + frame.sections.tobytes()
                    self.taken.append((frame.header, payload))
        finally:
            self._reader.close()

    def _passing(self) -> Iterator[bytes]:
        """Messages that are sent there until all frames have been taken; what is said of them is heard between."""
        there, back = self._sender.messages(), self._back.messages()
        while len(self.taken) < len(SENT):
            for _ in range(self._back._queue.qsize()):
                # a word wakes the queue once
                assert self._hearer.read(next(back)) is None
            yield next(there)


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
def test_any_bit_of_a_stream_may_come_turned(frame: int, bit: int) -> None:
    def change(number: int, message: bytes) -> bytes:
        return flipped(message, bit % (8 * len(message))) if number == frame else message

    stream = Stream(change)
    stream.run()
    assert stream.taken == SENT


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(MESSAGES) - 1), st.integers(0, 10**6))
def test_a_frame_of_a_stream_that_comes_damaged_twice_names_the_link(frame: int, bit: int) -> None:
    damaged = MESSAGES[frame]
    assume(refuses(flipped(damaged, bit % (8 * len(damaged)))))
    stream = Stream(lambda _, message: flipped(message, bit % (8 * len(message))) if message == damaged else message)
    with pytest.raises(
        DamagedFrameError, match=f"^the link from worker 0 to server 0: frame {frame} came damaged twice: "
    ):
        stream.run()
    assert stream.taken == SENT[:frame]


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
def test_whoever_waits_until_the_other_side_has_taken_all_is_told_when_it_has_left(last: str) -> None:
    """It leaves, its connection is cut, and somebody begins to wait, in any order."""
    near, far = socket.socketpair()
    broke, told = threading.Event(), threading.Event()
    sender = DirectSender(near, "worker 1", lambda error: broke.set())

    def cut() -> None:
        far.close()
        while not broke.wait(0.01):
            sender.send(*FRAMES[0])

    steps = {"give up": sender.give_up, "queue": lambda: sender.after_taken(told.set), "break": cut}
    for name in sorted(steps, key=lambda name: (name == last, name)):
        assert not told.is_set()
        steps[name]()
    assert told.wait(120)
    sender.close(20)


def test_what_has_been_taken_is_told_behind_it() -> None:
    told: list[int] = []
    done = threading.Event()
    with wired() as (near, far):
        receiver = Receiver()
        ends = Origin("worker 0", Sender("job", 1, 0), "server 0"), Origin("server 0", Sender("job", 0))
        receiving = FrameConnection(far, ends[0], receiver.sink, receiver.fail)
        sending = FrameConnection(near, ends[1], receiver.sink, receiver.fail)
        for header, pieces in FRAMES:
            sending.send(header, pieces)
            sending.after_taken(lambda: told.append(len(receiver.taken)))
        sending.after_taken(done.set)
        assert done.wait(120)
        assert [each >= number for number, each in enumerate(told, 1)] == [True] * len(FRAMES)
        sending.close()
        receiving.close()
