"""Frames on a connection of their own arrive as they were sent, and what is none is an error."""

from __future__ import annotations

import math
import socket
import struct
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
from support.checksums import crc32c_by_table

from taihu.core.base.errors import FrameError, MemberLostError, TaihuError
from taihu.core.wire.frames.direct_header import HEADER_BYTES, check_header, pack_header, unpack_header
from taihu.core.wire.frames.headers import Address, At, Frame, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import (
    ActivationPart,
    Encoding,
    Gradients,
    Parameters,
    Question,
    Rates,
    RingSegment,
    SparseMessage,
    Summed,
)
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES
from taihu.core.wire.links.direct_frames import DirectReceiver, DirectSender
from taihu.core.wire.links.inbox import Origin, Sink

SENDER = Origin("worker 3", Sender("job", 77, 3))
ALL_KINDS = (Gradients, Question, Summed, Parameters, RingSegment, ActivationPart, SparseMessage)
DENSE_TYPES = st.sampled_from([each for each in ValueType if not each.few_bits])


class Inbox:
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


@contextmanager
def connected() -> Iterator[tuple[Inbox, DirectReceiver, socket.socket]]:
    """A receiver and the other end of its connection."""
    inbox = Inbox()
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=120)
        near.settimeout(None)
        far, _ = server.accept()
    receiver = DirectReceiver(far, SENDER, inbox.sink, inbox.errors.put)
    with near:
        yield inbox, receiver, near
    receiver.close()


def dense_header(count: int, value_type: ValueType = ValueType.FP32, *, offset: int = 0) -> FrameHeader:
    kind = Gradients() if value_type is ValueType.FP32 else Gradients(4096.0, offset % 2 == 0)
    return FrameHeader(SENDER.sender, Address(At(1, 5, 6), 9, offset, count), kind, value_type=value_type)


def sent_over(connection: socket.socket, act: Callable[[DirectSender], None]) -> None:
    """Let a sender act on a copy of the connection, and end it."""
    errors: list[TaihuError] = []
    sender = DirectSender(connection.dup(), "worker 4", errors.append)
    act(sender)
    sender.close(20)
    assert not errors


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(DENSE_TYPES, st.lists(st.integers(0, 300), max_size=4)), max_size=5))
def test_frames_arrive_as_they_were_sent(frames: list[tuple[ValueType, list[int]]]) -> None:
    with connected() as (inbox, receiver, connection):
        rng = np.random.default_rng(1)
        sent = []

        def act(sender: DirectSender) -> None:
            for offset, (value_type, sizes) in enumerate(frames):
                arrays = [rng.bytes(size * value_type.dtype.itemsize) for size in sizes]
                header = dense_header(sum(sizes), value_type, offset=offset)
                sent.append((header, b"".join(arrays), False))
                sender.send(header, [np.frombuffer(array, dtype=value_type.dtype) for array in arrays])

        sent_over(connection, act)
        receiver.join()
        assert inbox.frames == sent
        assert inbox.errors.empty()
        assert receiver.received_bytes == sum(HEADER_BYTES + len(values) for _, values, _ in sent)


def test_many_pieces_and_a_frame_larger_than_the_sockets_buffers() -> None:
    with connected() as (inbox, receiver, connection):
        small = [np.full(1, number, dtype=np.float32) for number in range(3000)]
        large = np.arange(MAX_PAYLOAD_BYTES // 4, dtype=np.float32)

        def act(sender: DirectSender) -> None:
            sender.send(dense_header(3000), small)
            sender.send(dense_header(len(large)), [large[:7], large[7:]])

        sent_over(connection, act)
        receiver.join()
        assert [values for _, values, _ in inbox.frames] == [np.concatenate(small).tobytes(), large.tobytes()]


def test_values_with_a_place_are_received_there() -> None:
    with connected() as (inbox, receiver, connection):
        arena = np.zeros(5000, dtype=np.float32)
        inbox.places[8] = [arena[start : start + 2] for start in range(0, 4500, 3)]
        values = np.arange(3000, dtype=np.float32)
        sent_over(connection, lambda sender: sender.send(dense_header(3000, offset=8), [values]))
        receiver.join()
        assert [in_place for _, _, in_place in inbox.frames] == [True]
        expected = np.zeros(5000, dtype=np.float32)
        expected[:4500].reshape(-1, 3)[:, :2] = values.reshape(-1, 2)
        assert arena.tolist() == expected.tolist()


def test_frames_that_are_not_dense_are_kept() -> None:
    sparse = replace(dense_header(9), encoding=Encoding.SPARSE, selected=3)
    shared = replace(dense_header(7), encoding=Encoding.SHARED)
    values, sections = np.arange(3, dtype=np.float32), np.arange(5, dtype=np.uint8)
    with connected() as (inbox, receiver, connection):

        def act(sender: DirectSender) -> None:
            sender.send(sparse, [values, sections])
            sender.send(shared, [])

        sent_over(connection, act)
        receiver.join()
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
    receiver = DirectReceiver(far, SENDER, sink, errors.put)
    with near:
        near.sendall(raw_header(encoding=2))
        assert "internal error while taking in a frame of worker 3: KeyError('lost')" in str(errors.get(timeout=120))
    receiver.join()
    assert raised.get(timeout=120).exc_type is KeyError


def test_a_frame_without_values_arrives_as_such() -> None:
    frames: SimpleQueue[Frame] = SimpleQueue()
    near, far = socket.socketpair()
    sink = Sink(ALL_KINDS, places=lambda header: None, take=lambda *_: None, take_frame=frames.put)
    receiver = DirectReceiver(far, SENDER, sink, lambda error: None)
    header = replace(dense_header(70, offset=4), kind=Question(), encoding=Encoding.NONE)
    sent_over(near, lambda sender: sender.send(header, ()))
    near.close()
    receiver.join()
    frame = frames.get(timeout=120)
    assert (frame.header, frame.values.size, frames.empty()) == (header, 0, True)


def test_callbacks_come_between_the_frames_around_them() -> None:
    with connected() as (_, receiver, connection):
        seen: list[int] = []

        def act(sender: DirectSender) -> None:
            sender.send(dense_header(1), [np.zeros(1, dtype=np.float32)])
            sender.after(lambda: seen.append(sender.sent_bytes))
            sender.send(dense_header(2), [np.zeros(2, dtype=np.float32)])

        sent_over(connection, act)
        receiver.join()
        assert seen == [HEADER_BYTES + 4]


def test_urgent_frames_overtake_others() -> None:
    with connected() as (inbox, receiver, connection):
        begun, queued = threading.Event(), threading.Event()
        seen: list[str] = []

        def hold() -> None:
            begun.set()
            assert queued.wait(120)

        def act(sender: DirectSender) -> None:
            sender.after(hold)
            assert begun.wait(120)
            sender.send(dense_header(1, offset=1), [np.zeros(1, dtype=np.float32)])
            sender.after(lambda: seen.append("others"))
            sender.send(dense_header(1, offset=2), [np.zeros(1, dtype=np.float32)], urgent=True)
            sender.after(lambda: seen.append("urgent"), urgent=True)
            queued.set()

        sent_over(connection, act)
        receiver.join()
        assert [header.address.offset for header, _, _ in inbox.frames] == [2, 1]
        assert seen == ["urgent", "others"]


def raw_header(
    *,
    magic: int = 0x74616869,
    kind: int = 1,
    value_type: int = 1,
    encoding: int = 0,
    offset: int = 0,
    count: int = 2,
    selected: int = 0,
    size: int | None = None,
    union: bytes = struct.pack("<fB", 1.0, 0),
    payload: bytes = b"",
) -> bytes:
    size = size if size is not None else 0 if encoding == 2 else 4 * count
    whole = struct.pack(
        "<IBBBxIQIIQQQQ16s", magic, kind, value_type, encoding, 1, 5, 6, 9, offset, count, selected, size, union
    )
    whole += struct.pack("<I", crc32c_by_table(payload))
    whole += struct.pack("<I", crc32c_by_table(whole))
    assert len(whole) == HEADER_BYTES
    return whole


def scaled(scale: float, skipped: int = 0) -> bytes:
    return raw_header(union=struct.pack("<fB", scale, skipped))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (raw_header(magic=1), FrameError, "worker 3: not the header of a frame"),
        (raw_header(kind=0), FrameError, "worker 3: not the header of a frame"),
        (raw_header(kind=13), FrameError, "worker 3: not the header of a frame"),
        (raw_header(value_type=0), FrameError, "worker 3: not the header of a frame"),
        (raw_header(value_type=99), FrameError, "worker 3: not the header of a frame"),
        (raw_header(encoding=4), FrameError, "worker 3: not the header of a frame"),
        (raw_header(kind=3, union=struct.pack("<dB", math.nan, 0)), FrameError, "worker 3: not the header"),
        (raw_header(kind=3, union=struct.pack("<dB", 1.0, 2)), FrameError, "worker 3: not the header"),
        (scaled(1.0, skipped=2), FrameError, "worker 3: not the header of a frame"),
        (scaled(0.0), FrameError, "worker 3: not the header of a frame"),
        (scaled(math.inf), FrameError, "worker 3: not the header of a frame"),
        (scaled(math.nan), FrameError, "worker 3: not the header of a frame"),
        (raw_header(kind=2), FrameError, "worker 3 sent a question with encoding dense"),
        (raw_header(kind=5, encoding=1), FrameError, "worker 3 sent a segment of a ring with encoding sparse"),
        (raw_header(selected=1), FrameError, "frame encoding dense, 1 selected: expected none"),
        (raw_header(offset=2**63 - 2), FrameError, "frame of 2 values at offset 9223372036854775806"),
        (raw_header(offset=2**64 - 1), FrameError, "frame of 2 values at offset 18446744073709551615"),
        (raw_header(count=MAX_PAYLOAD_BYTES // 4 + 1), FrameError, "payload of 4194308 bytes: expected at most"),
        (raw_header(count=2**61), FrameError, "expected at most 4194304 bytes"),
        (raw_header(count=2, size=9), FrameError, "payload of 9 bytes: expected 2 float32 values"),
        (raw_header(encoding=1, count=2, selected=3, size=12), FrameError, "expected 3 float32 values of 2 elements"),
        (raw_header(encoding=1, count=9, selected=3, size=11), FrameError, "payload of 11 bytes: expected 3 float32"),
        (raw_header(encoding=2, size=4), FrameError, "payload of 4 bytes: expected 0 float32"),
        (raw_header()[:-1], MemberLostError, "worker 3 was lost"),
        (raw_header() + b"\0" * 5, MemberLostError, "worker 3 was lost"),
        (raw_header(), MemberLostError, "worker 3 was lost"),
    ],
)
def test_what_is_no_frame_is_an_error(data: bytes, error: type[TaihuError], message: str) -> None:
    with connected() as (inbox, receiver, connection):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        receiver.join()
        told = inbox.errors.get(timeout=120)
        assert isinstance(told, error)
        assert message in str(told)
        assert not inbox.frames


UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
KINDS = st.one_of(
    st.builds(Gradients, st.integers(0, 32).map(lambda power: 2.0**power), st.booleans()),
    st.just(Rates()),
    st.just(Question()),
    st.builds(Summed, st.floats(allow_nan=False, allow_infinity=False), st.booleans()),
    st.just(Parameters()),
    st.builds(RingSegment, UINT32, UINT32),
    st.builds(ActivationPart, UINT32),
    st.builds(SparseMessage, UINT32, UINT32),
)


@st.composite
def headers(draw: st.DrawFn) -> tuple[FrameHeader, int]:
    """A header of any kind, and the bytes of a payload that fits it."""
    kind, elements = draw(KINDS), draw(st.integers(0, 1000))
    encoding = draw(st.sampled_from(sorted(kind.encodings, key=lambda each: each.value)))
    sparse = encoding is Encoding.SPARSE
    value_type = draw(st.sampled_from(list(ValueType)) if sparse else DENSE_TYPES)
    selected, sections = (draw(st.integers(0, elements)), draw(st.integers(0, 9))) if sparse else (0, 0)
    at = At(draw(UINT32), draw(UINT64), draw(UINT32))
    address = Address(at, draw(UINT32), draw(st.integers(0, 2**62)), elements)
    held = elements if encoding is Encoding.DENSE else selected
    size = value_type.bytes_of(held) + sections
    return FrameHeader(SENDER.sender, address, kind, encoding, value_type, selected), size


@settings(deadline=None, max_examples=300)
@given(headers())
def test_a_header_of_any_kind_has_one_size_and_comes_back_equal(drawn: tuple[FrameHeader, int]) -> None:
    header, size = drawn
    packed = pack_header(header, size, 77)
    check_header(memoryview(packed))
    assert len(packed) == HEADER_BYTES
    seen = unpack_header(memoryview(packed), SENDER.sender, SENDER.name)
    assert seen == (header, size, 77)
    assert type(seen[0].kind) is type(header.kind)


@settings(deadline=None, max_examples=300)
@given(headers(), st.lists(st.tuples(st.integers(0, HEADER_BYTES - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_hostile_header_makes_sense_or_is_a_frame_error(
    drawn: tuple[FrameHeader, int], changes: list[tuple[int, int]]
) -> None:
    packed = bytearray(pack_header(*drawn, 0))
    for position, value in changes:
        packed[position] = value
    reason = ""
    try:
        header, size, _ = unpack_header(memoryview(packed), SENDER.sender, SENDER.name)
    except FrameError as error:
        reason = str(error)
    assert len(reason.splitlines()) <= 1
    if not reason:
        assert header.encoding in header.kind.encodings
        assert header.address.offset + header.address.elements < 2**63
        assert header.value_type.bytes_of(header.held) <= size <= MAX_PAYLOAD_BYTES


@settings(deadline=None)
@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_are_no_header(data: bytes) -> None:
    with pytest.raises(FrameError, match="worker 3: not the header of a frame on its connection"):
        unpack_header(memoryview(data), SENDER.sender, SENDER.name)


def test_a_frame_of_a_kind_that_is_not_expected_is_an_error_before_its_values_are_taken() -> None:
    asked: list[FrameHeader] = []
    errors: SimpleQueue[TaihuError] = SimpleQueue()
    near, far = socket.socketpair()
    sink = Sink((Gradients, Question), places=asked.append, take=lambda *_: None, take_frame=lambda _: None)
    receiver = DirectReceiver(far, SENDER, sink, errors.put)
    header = replace(dense_header(2), kind=RingSegment(1))
    sent_over(near, lambda sender: sender.send(header, [np.zeros(2, dtype=np.float32)]))
    near.close()
    receiver.join()
    assert str(errors.get(timeout=120)) == "worker 3 sent a segment of a ring: expected gradients or a question"
    assert not asked


def test_a_sender_says_that_its_connection_broke() -> None:
    errors: SimpleQueue[TaihuError] = SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=120)
        near.settimeout(None)
        far, _ = server.accept()
        sender = DirectSender(near, "worker 4", errors.put)
        far.close()
        values = np.zeros(1 << 20, dtype=np.float32)
        for _ in range(64):
            sender.send(dense_header(len(values)), [values])
        assert str(errors.get(timeout=120)) == "worker 4 was lost: its connection broke"
        sender.close(20)


def test_a_peer_that_does_not_read_does_not_hold_up_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=120)
        near.settimeout(None)
        far, _ = server.accept()
        errors: list[TaihuError] = []
        sender = DirectSender(near, "worker 4", errors.append)
        values = np.zeros(8 << 20, dtype=np.float32)
        sender.send(dense_header(1), [values])
        sender.close(0.1)
        assert not errors
        far.close()
