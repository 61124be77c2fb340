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
from support.frames import header_of, read

from taihu.core.base.errors import DamagedFrameError, MemberLostError, TaihuError
from taihu.core.chaos.faults import fault_from
from taihu.core.chaos.frames import FaultyFrames
from taihu.core.wire.frames.format import HEADER_BYTES, message_of
from taihu.core.wire.frames.frame_faults import FrameFault, turned
from taihu.core.wire.frames.headers import Frame, FrameHeader
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Question
from taihu.core.wire.links.connection import PlainConnection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe

COUNTS = (40, 300, 0, 300, 7)
PIECES: list[NDArray[np.float32]] = [np.full(count, 1 + at, dtype=np.float32) for at, count in enumerate(COUNTS)]
HEADERS = [
    header_of(1, 1, 1, 0, 1000 * at, count, 0)
    if count
    else header_of(1, 1, 1, 0, 1000 * at, 9, 0, encoding=Encoding.NONE, kind=Question())
    for at, count in enumerate(COUNTS)
]
SENT = [(header, piece.tobytes()) for header, piece in zip(HEADERS, PIECES, strict=True)]
WORKER, SERVER = Origin("worker 0", Sender(1, 0), "server 0"), Origin("server 0", Sender(0), "worker 0")


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
        events = PipeEvents(receiver.fail, receiver.over.set)
        receiving = SocketPipe(PlainConnection(far), Outbox("worker 0"), Inbox(WORKER, receiver.sink), events)
        out = Outbox("server 0", faults=due)
        sending = SocketPipe(PlainConnection(near), out, Inbox(SERVER, sender.sink), PipeEvents(sender.fail))
        with closing(receiving), closing(sending):
            for number, (header, piece) in enumerate(zip(HEADERS, PIECES, strict=True)):
                if number == at:
                    out.after(partial(ask, due, *faults))
                out.send(header, [piece])
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


@pytest.mark.parametrize(("header", "piece"), [*zip(HEADERS, PIECES, strict=True)])
def test_one_bit_is_turned_of_the_values_if_there_are_any(header: FrameHeader, piece: NDArray[np.float32]) -> None:
    sent = message_of(header, [piece])
    changed = [at for at, (a, b) in enumerate(zip(sent, turned([sent], HEADER_BYTES), strict=True)) if a != b]
    assert len(changed) == 1
    assert sent[changed[0]] ^ turned([sent], HEADER_BYTES)[changed[0]] in {1 << bit for bit in range(8)}
    assert (changed[0] >= HEADER_BYTES) == bool(piece.size)
    with pytest.raises(DamagedFrameError):
        read(turned([sent], HEADER_BYTES))


def test_each_fault_is_of_one_frame() -> None:
    due = FaultyFrames()
    assert not due.takes(fault_from("drop worker 0 at push"))
    assert not due.is_due
    for each in FrameFault:
        assert due.takes(fault_from(f"{each.value} worker 0 at push"))
    assert [due.take() for _ in range(4)] == [*FrameFault, None]
    assert not due.is_due
