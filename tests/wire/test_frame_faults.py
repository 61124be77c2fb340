"""Frames that a sender turns, doubles or breaks off: none is taken twice or by half, and values stay as they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.flips import wired
from support.frames import header_of

from taihu.core.base.errors import DamagedFrameError, FrameError, MemberLostError, TaihuError
from taihu.core.chaos.faults import fault_from
from taihu.core.chaos.frames import FaultyFrames
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.format import read_message
from taihu.core.wire.frames.direct_header import HEADER_BYTES, check_header, pack_header
from taihu.core.wire.frames.frame_faults import FrameFault, turned
from taihu.core.wire.frames.headers import Frame, FrameHeader
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Question
from taihu.core.wire.links.socket_pipe import SocketPipe
from taihu.core.wire.links.inbox import Origin, Sink
from taihu.core.wire.links.stream import StreamReader, StreamSender
from taihu.core.wire.links.under_way import ArrivingFrames

COUNTS = (40, 300, 0, 300, 7)
PIECES: list[NDArray[np.float32]] = [np.full(count, 1 + at, dtype=np.float32) for at, count in enumerate(COUNTS)]
HEADERS = [
    header_of("job", 1, 1, 1, 0, 1000 * at, count, 0)
    if count
    else header_of("job", 1, 1, 1, 0, 1000 * at, 9, 0, encoding=Encoding.NONE, kind=Question())
    for at, count in enumerate(COUNTS)
]
SENT = [(header, piece.tobytes()) for header, piece in zip(HEADERS, PIECES, strict=True)]
WORKER, SERVER = Origin("worker 0", Sender("job", 1, 0), "server 0"), Origin("server 0", Sender("job", 0), "worker 0")


class Receiver:
    def __init__(self) -> None:
        self.taken: list[tuple[FrameHeader, bytes]] = []
        self.errors: SimpleQueue[TaihuError] = SimpleQueue()
        self.over = threading.Event()
        self.sink = Sink((Gradients, Question), places=lambda _: None, take=self._take, take_frame=self.take)

    def _take(self, header: FrameHeader, values: Sequence[NDArray[Any]], in_place: bool) -> None:
        self.taken.append((header, b"".join(each.tobytes() for each in values)))

    def take(self, frame: Frame) -> None:
        self.taken.append((frame.header, frame.values.tobytes()))

    def fail(self, error: TaihuError) -> None:
        self.errors.put(error)
        self.over.set()


def ask(due: FaultyFrames, *faults: str) -> None:
    assert all(due.takes(fault_from(f"{each} worker 0 at push")) for each in faults)


@contextmanager
def sent_with(*faults: str, at: int) -> Iterator[tuple[Receiver, Receiver]]:
    """All frames sent over a connection, the one numbered `at` and those behind it with a fault each."""
    receiver, sender, due = Receiver(), Receiver(), FaultyFrames()
    with wired() as (near, far):
        receiving = FrameConnection(far, WORKER, receiver.sink, receiver.fail, receiver.over.set)
        sending = FrameConnection(near, SERVER, sender.sink, sender.fail, faults=due)
        with closing(receiving), closing(sending):
            for number, (header, piece) in enumerate(zip(HEADERS, PIECES, strict=True)):
                if number == at:
                    sending.after(partial(ask, due, *faults))
                sending.send(header, [piece])
            sending.finish()
            assert receiver.over.wait(120)
            yield receiver, sender


@pytest.mark.parametrize("at", range(len(COUNTS)))
@pytest.mark.parametrize("faults", [("duplicate",), ("duplicate", "duplicate")])
def test_all_frames_of_a_connection_are_taken_once(faults: tuple[str, ...], at: int) -> None:
    with sent_with(*faults, at=at) as (receiver, sender):
        assert receiver.errors.empty()
        assert sender.errors.empty()
        assert receiver.taken == SENT


@pytest.mark.parametrize("at", range(len(COUNTS)))
@pytest.mark.parametrize("faults", [("corrupt",), ("duplicate", "corrupt"), ("corrupt", "duplicate")])
def test_a_damaged_frame_of_a_connection_ends_it_and_the_values_stay(faults: tuple[str, ...], at: int) -> None:
    values = [piece.copy() for piece in PIECES]
    damaged = at + faults.index("corrupt")
    with sent_with(*faults, at=at) as (receiver, _):
        if damaged == len(COUNTS):
            assert receiver.taken == SENT
        else:
            error = receiver.errors.get(timeout=120)
            assert isinstance(error, DamagedFrameError)
            assert str(error).startswith(f"the link from worker 0 to server 0: frame {damaged} came damaged: ")
            assert receiver.taken == SENT[:damaged]
    assert all(map(np.array_equal, PIECES, values))


@pytest.mark.parametrize("at", range(len(COUNTS)))
def test_a_frame_of_a_connection_that_is_broken_off_is_a_loss_on_both_sides(at: int) -> None:
    with sent_with("truncate", at=at) as (receiver, sender):
        assert receiver.taken == SENT[:at]
        for end, name in ((receiver, "worker 0"), (sender, "server 0")):
            error = end.errors.get(timeout=120)
            assert isinstance(error, MemberLostError)
            assert str(error) == f"{name} was lost: its connection broke"


def test_a_number_that_is_left_out_names_the_link() -> None:
    arriving = ArrivingFrames(WORKER)
    assert arriving.admits(0)
    arriving.took()
    assert not arriving.admits(0)
    for other in (2, 255):
        with pytest.raises(
            FrameError, match=r"^the link from worker 0 to server 0: another frame than number 1 came"
        ):
            arriving.admits(other)
    assert arriving.admits(1)


def test_numbers_go_on_behind_what_is_written_of_them() -> None:
    arriving = ArrivingFrames(WORKER)
    for number in range(600):
        assert arriving.admits(number % 256)
        arriving.took()
        assert not arriving.admits(number % 256)


def messages_with(*faults: str, at: int) -> list[bytes]:
    """The messages of all frames in a stream, the one numbered `at` and those behind it with a fault each."""
    sender = StreamSender("server 0", faults=(due := FaultyFrames()))
    for number, (header, piece) in enumerate(zip(HEADERS, PIECES, strict=True)):
        if number == at:
            sender.after(partial(ask, due, *faults))
        sender.send(header, [piece] if piece.size else [])
    sender.end()
    return list(sender.messages())


def taken_of(messages: Sequence[bytes]) -> list[tuple[FrameHeader, bytes]]:
    taken, reader = Receiver(), StreamReader(WORKER)
    for message in messages:
        frame = reader.read(message)
        if frame is not None:
            taken.take(frame)
    return taken.taken


@pytest.mark.parametrize("at", [0, 1, 4])
def test_all_frames_of_a_stream_are_taken_once(at: int) -> None:
    messages = messages_with("duplicate", at=at)
    assert len(messages) == len(SENT) + 1
    assert taken_of(messages) == SENT


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_frame_of_a_stream_that_is_damaged_names_the_link(at: int) -> None:
    messages = messages_with("corrupt", at=at)
    assert taken_of(messages[:at]) == SENT[:at]
    with pytest.raises(
        DamagedFrameError, match=f"^the link from worker 0 to server 0: frame {at} came damaged: gradients"
    ):
        taken_of(messages)


def test_a_question_of_a_stream_has_no_faults() -> None:
    """The same one may be asked again: it is not known when it comes twice."""
    sender = StreamSender("server 0", faults=(due := FaultyFrames()))
    assert due.takes(fault_from("duplicate worker 0 at push"))
    for _ in range(2):
        sender.send(HEADERS[2], [])
    sender.send(HEADERS[4], [PIECES[4]])
    sender.end()
    reader = StreamReader(WORKER)
    taken = [reader.read(message) for message in sender.messages()]
    assert [None if frame is None else frame.header for frame in taken] == [HEADERS[2], HEADERS[2], HEADERS[4], None]


def test_a_stream_in_which_a_frame_is_broken_off_ends_before_it() -> None:
    sender = StreamSender("server 0", faults=(due := FaultyFrames()))
    sender.send(HEADERS[0], [PIECES[0]])
    sender.after(partial(ask, due, "truncate"))
    sender.send(HEADERS[1], [PIECES[1]])
    messages = sender.messages()
    assert read_frame(next(messages)).header == HEADERS[0]
    with pytest.raises(MemberLostError, match=r"^server 0 was lost: its connection broke$"):
        next(messages)


@pytest.mark.parametrize(("header", "piece"), [*zip(HEADERS, PIECES, strict=True)])
def test_one_bit_is_turned_of_the_values_if_there_are_any(header: FrameHeader, piece: NDArray[np.float32]) -> None:
    in_message = encode_frame(header, [piece] if piece.size else [])
    on_connection = pack_header(header, piece.nbytes, 0) + piece.tobytes()
    for sent, begin in ((in_message, len(in_message) - piece.nbytes), (on_connection, HEADER_BYTES)):
        changed = [at for at, (a, b) in enumerate(zip(sent, turned([sent], begin), strict=True)) if a != b]
        assert len(changed) == 1
        assert sent[changed[0]] ^ turned([sent], begin)[changed[0]] in {1 << bit for bit in range(8)}
        assert (changed[0] >= begin) == bool(piece.size)
    with pytest.raises(FrameError):
        read_frame(turned([in_message], len(in_message) - piece.nbytes))
    if not piece.size:
        with pytest.raises(FrameError):
            check_header(memoryview(turned([on_connection], HEADER_BYTES)))


def test_each_fault_is_of_one_frame() -> None:
    due = FaultyFrames()
    assert not due.takes(fault_from("drop worker 0 at push"))
    assert not due.is_due
    for each in FrameFault:
        assert due.takes(fault_from(f"{each.value} worker 0 at push"))
    assert [due.take() for _ in range(4)] == [*FrameFault, None]
    assert not due.is_due
