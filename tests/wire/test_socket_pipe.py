"""Frames on a connection of their own arrive as they were sent, and what is none is an error."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.frames import header_of

from taihu.core.base.errors import MemberLostError, TaihuError
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.format import HEADER_BYTES, message_of
from taihu.core.wire.frames.headers import Address, At, Frame, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import (
    ActivationPart,
    Encoding,
    Gradients,
    Parameters,
    Question,
    RingSegment,
    SparseMessage,
    Summed,
)
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES
from taihu.core.wire.links.connection import PlainConnection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe

SENDER = Origin("worker 3", Sender(77, 3))
ALL_KINDS = (Gradients, Question, Summed, Parameters, RingSegment, ActivationPart, SparseMessage)
DENSE_TYPES = st.sampled_from([each for each in ValueType if not each.few_bits])


class Taken:
    """Frames that a receiver takes in, and its end."""

    def __init__(self) -> None:
        self.frames: list[tuple[FrameHeader, bytes, bool]] = []
        self.errors: SimpleQueue[TaihuError] = SimpleQueue()
        self.places: dict[int, list[NDArray[Any]]] = {}
        self.kept: list[Frame] = []

    @property
    def sink(self) -> Sink:
        return Sink(
            ALL_KINDS,
            places=lambda header: self.places.get(header.address.offset),
            take=self._take,
            take_frame=self.kept.append,
        )

    def _take(self, header: FrameHeader, values: Sequence[NDArray[Any]], in_place: bool) -> None:
        self.frames.append((header, b"".join(each.tobytes() for each in values), in_place))


def made(connection: socket.socket, sink: Sink, on_lost: Callable[[TaihuError], None]) -> SocketPipe:
    return SocketPipe(PlainConnection(connection), Outbox("worker 4"), Inbox(SENDER, sink), PipeEvents(on_lost))


@contextmanager
def connected() -> Iterator[tuple[Taken, SocketPipe, socket.socket]]:
    """A receiver and the other end of its connection."""
    inbox = Taken()
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=120)
        near.settimeout(None)
        far, _ = server.accept()
    receiver = made(far, inbox.sink, inbox.errors.put)
    with near:
        yield inbox, receiver, near
    receiver.close()


def dense_header(count: int, value_type: ValueType = ValueType.FP32, *, offset: int = 0) -> FrameHeader:
    kind = Gradients() if value_type is ValueType.FP32 else Gradients(4096.0, offset % 2 == 0)
    return FrameHeader(SENDER.sender, Address(At(1, 5, 6), 9, offset, count), kind, value_type=value_type)


def sent_over(connection: socket.socket, act: Callable[[Outbox], None]) -> None:
    """Let a pipe act on a copy of the connection, and end its direction."""
    errors: list[TaihuError] = []
    pipe = made(connection.dup(), nothing(), errors.append)
    act(pipe.out)
    pipe.finish()
    assert not errors


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(DENSE_TYPES, st.lists(st.integers(0, 300), max_size=4)), max_size=5))
def test_frames_arrive_as_they_were_sent(frames: list[tuple[ValueType, list[int]]]) -> None:
    with connected() as (inbox, receiver, connection):
        rng = np.random.default_rng(1)
        sent = []

        def act(sender: Outbox) -> None:
            for offset, (value_type, sizes) in enumerate(frames):
                arrays = [rng.bytes(size * value_type.dtype.itemsize) for size in sizes]
                header = dense_header(sum(sizes), value_type, offset=offset)
                sent.append((header, b"".join(arrays), False))
                sender.send(header, [np.frombuffer(array, dtype=value_type.dtype) for array in arrays])

        sent_over(connection, act)
        receiver.drain()
        assert inbox.frames == sent
        assert inbox.errors.empty()
        assert receiver.inbox.received_bytes == sum(HEADER_BYTES + len(values) for _, values, _ in sent)


def test_many_pieces_and_a_frame_larger_than_the_sockets_buffers() -> None:
    with connected() as (inbox, receiver, connection):
        small = [np.full(1, number, dtype=np.float32) for number in range(3000)]
        large = np.arange(MAX_PAYLOAD_BYTES // 4, dtype=np.float32)

        def act(sender: Outbox) -> None:
            sender.send(dense_header(3000), small)
            sender.send(dense_header(len(large)), [large[:7], large[7:]])

        sent_over(connection, act)
        receiver.drain()
        assert [values for _, values, _ in inbox.frames] == [np.concatenate(small).tobytes(), large.tobytes()]


def test_values_with_a_place_are_received_there() -> None:
    with connected() as (inbox, receiver, connection):
        arena = np.zeros(5000, dtype=np.float32)
        inbox.places[8] = [arena[start : start + 2] for start in range(0, 4500, 3)]
        values = np.arange(3000, dtype=np.float32)
        sent_over(connection, lambda sender: sender.send(dense_header(3000, offset=8), [values]))
        receiver.drain()
        assert [in_place for _, _, in_place in inbox.frames] == [True]
        expected = np.zeros(5000, dtype=np.float32)
        expected[:4500].reshape(-1, 3)[:, :2] = values.reshape(-1, 2)
        assert arena.tolist() == expected.tolist()


def test_frames_that_are_not_dense_are_kept() -> None:
    sparse = replace(dense_header(9), encoding=Encoding.SPARSE, selected=3)
    shared = replace(dense_header(7), encoding=Encoding.SHARED)
    values, sections = np.arange(3, dtype=np.float32), np.arange(5, dtype=np.uint8)
    with connected() as (inbox, receiver, connection):

        def act(sender: Outbox) -> None:
            sender.send(sparse, [values, sections])
            sender.send(shared, [])

        sent_over(connection, act)
        receiver.drain()
        assert inbox.errors.empty()
        assert [frame.header for frame in inbox.kept] == [sparse, shared]
        first, second = inbox.kept
        assert (first.values.tolist(), first.sections.tolist()) == (values.tolist(), sections.tolist())
        assert (second.moved_bytes, len(second.values), len(second.sections)) == (28, 0, 0)


def test_a_sink_that_fails_is_told_as_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: SimpleQueue[threading.ExceptHookArgs] = SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", raised.put)

    def fail(frame: Frame) -> None:
        raise KeyError("lost")

    errors: SimpleQueue[TaihuError] = SimpleQueue()
    near, far = socket.socketpair()
    sink = Sink(ALL_KINDS, places=lambda header: None, take=lambda *_: None, take_frame=fail)
    receiver = made(far, sink, errors.put)
    with near:
        near.sendall(message_of(header_of(77, 1, 1, 0, 0, 2, 3, encoding=Encoding.SHARED), ()))
        assert "internal error while taking in a frame of worker 3: KeyError('lost')" in str(errors.get(timeout=120))
    receiver.drain()
    assert raised.get(timeout=120).exc_type is KeyError


def test_a_frame_without_values_arrives_as_such() -> None:
    frames: SimpleQueue[Frame] = SimpleQueue()
    near, far = socket.socketpair()
    sink = Sink(ALL_KINDS, places=lambda header: None, take=lambda *_: None, take_frame=frames.put)
    receiver = made(far, sink, lambda error: None)
    header = replace(dense_header(70, offset=4), kind=Question(), encoding=Encoding.NONE)
    sent_over(near, lambda sender: sender.send(header, ()))
    near.close()
    receiver.drain()
    frame = frames.get(timeout=120)
    assert (frame.header, frame.values.size, frames.empty()) == (header, 0, True)


def test_callbacks_come_between_the_frames_around_them() -> None:
    with connected() as (_, receiver, connection):
        seen: list[int] = []

        def act(sender: Outbox) -> None:
            sender.send(dense_header(1), [np.zeros(1, dtype=np.float32)])
            sender.after(lambda: seen.append(sender.sent_bytes))
            sender.send(dense_header(2), [np.zeros(2, dtype=np.float32)])

        sent_over(connection, act)
        receiver.drain()
        assert seen == [HEADER_BYTES + 4]


def test_urgent_frames_overtake_others() -> None:
    with connected() as (inbox, receiver, connection):
        begun, queued = threading.Event(), threading.Event()
        seen: list[str] = []

        def hold() -> None:
            begun.set()
            assert queued.wait(120)

        def act(sender: Outbox) -> None:
            sender.after(hold)
            assert begun.wait(120)
            sender.send(dense_header(1, offset=1), [np.zeros(1, dtype=np.float32)])
            sender.after(lambda: seen.append("others"))
            sender.send(dense_header(1, offset=2), [np.zeros(1, dtype=np.float32)], urgent=True)
            sender.after(lambda: seen.append("urgent"), urgent=True)
            queued.set()

        sent_over(connection, act)
        receiver.drain()
        assert [header.address.offset for header, _, _ in inbox.frames] == [2, 1]
        assert seen == ["urgent", "others"]


WHOLE = message_of(header_of(77, 1, 1, 0, 0, 2, 3), [np.zeros(2, dtype=np.float32)])


@pytest.mark.parametrize("data", [WHOLE[:79], WHOLE[:80], WHOLE[:85], WHOLE[:-1]])
def test_what_ends_within_a_frame_is_a_loss(data: bytes) -> None:
    with connected() as (inbox, receiver, connection):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        receiver.drain()
        told = inbox.errors.get(timeout=120)
        assert isinstance(told, MemberLostError)
        assert str(told) == "worker 3 was lost: its connection broke"
        assert not inbox.frames


def test_a_frame_of_a_kind_that_is_not_expected_is_an_error_before_its_values_are_taken() -> None:
    asked: list[FrameHeader] = []
    errors: SimpleQueue[TaihuError] = SimpleQueue()
    near, far = socket.socketpair()
    sink = Sink((Gradients, Question), places=asked.append, take=lambda *_: None, take_frame=lambda _: None)
    receiver = made(far, sink, errors.put)
    header = replace(dense_header(2), kind=RingSegment(1))
    sent_over(near, lambda sender: sender.send(header, [np.zeros(2, dtype=np.float32)]))
    near.close()
    receiver.drain()
    assert str(errors.get(timeout=120)) == "worker 3 sent a segment of a ring: expected gradients or a question"
    assert not asked


def nothing() -> Sink:
    return Sink((), places=lambda _: None, take=lambda *_: None, take_frame=lambda _: None)


def test_a_peer_that_does_not_read_does_not_hold_up_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=120)
        near.settimeout(None)
        far, _ = server.accept()
        errors: list[TaihuError] = []
        origin = replace(SENDER, patience=Patience(0.05))
        pipe = SocketPipe(
            PlainConnection(near), Outbox("worker 4"), Inbox(origin, nothing()), PipeEvents(errors.append)
        )
        values = np.zeros(8 << 20, dtype=np.float32)
        pipe.out.send(dense_header(1), [values])
        pipe.close()
        assert not errors
        far.close()
