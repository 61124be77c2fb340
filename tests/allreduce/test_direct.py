"""Values on a connection of their own: they arrive as they were sent, and strangers get nothing."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from allreduce.direct import HEADER_BYTES, TOKEN_BYTES, DirectListener, DirectReceiver, DirectSender, Sink
from taihu.errors import FrameError, MemberLostError, TaihuError
from taihu.wire.codec import MAX_PAYLOAD_BYTES, FrameHeader, ValueType
from taihu.wire.identity import WorkerIdentity

SENDER = WorkerIdentity("job", 3, 77)
VALUE_TYPES = st.sampled_from(list(ValueType))


class Inbox:
    """What a receiver takes in, and how it ended."""

    def __init__(self) -> None:
        self.frames: list[tuple[FrameHeader, bytes, bool]] = []
        self.errors: SimpleQueue[TaihuError] = SimpleQueue()
        self.places: dict[int, NDArray[Any]] = {}

    @property
    def sink(self) -> Sink:
        return Sink(
            destination=lambda header: self.places.get(header.offset),
            take=lambda header, values, in_place: self.frames.append((header, values.tobytes(), in_place)),
            take_sparse=lambda frame: self.errors.put(FrameError(f"sparse: {frame}")),
        )


@contextmanager
def connected() -> Iterator[tuple[Inbox, DirectReceiver, socket.socket]]:
    """A receiver and the other end of its connection, which has said its token."""
    inbox, ready = Inbox(), SimpleQueue[DirectReceiver]()
    listener = DirectListener()

    def receive(connection: socket.socket) -> None:
        ready.put(DirectReceiver(connection, SENDER, inbox.sink, inbox.errors.put))

    token = listener.expect(receive)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=20) as connection:
        connection.sendall(token)
        receiver = ready.get(timeout=20)
        yield inbox, receiver, connection
    receiver.close()
    listener.close()


def header_of(count: int, value_type: ValueType = ValueType.FP32, *, offset: int = 0) -> FrameHeader:
    return FrameHeader("job", 77, 0, 5, 9, offset, count, 3, value_type=value_type, hop=2)


def sent_over(connection: socket.socket, act: Callable[[DirectSender], None]) -> None:
    """Let a sender act on a copy of the connection, and end it."""
    errors: list[TaihuError] = []
    sender = DirectSender(connection.dup(), "worker 4", errors.append)
    act(sender)
    sender.close(20)
    connection.shutdown(socket.SHUT_RDWR)
    assert not errors


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(VALUE_TYPES, st.lists(st.integers(0, 300), max_size=4)), max_size=5))
def test_frames_arrive_as_they_were_sent(frames: list[tuple[ValueType, list[int]]]) -> None:
    with connected() as (inbox, receiver, connection):
        rng = np.random.default_rng(1)
        sent = []

        def act(sender: DirectSender) -> None:
            for offset, (value_type, sizes) in enumerate(frames):
                arrays = [rng.bytes(size * value_type.dtype.itemsize) for size in sizes]
                header = header_of(sum(sizes), value_type, offset=offset)
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
            sender.send(header_of(3000), small)
            sender.send(header_of(len(large)), [large[:7], large[7:]])

        sent_over(connection, act)
        receiver.join()
        assert [values for _, values, _ in inbox.frames] == [np.concatenate(small).tobytes(), large.tobytes()]


def test_values_with_a_place_are_received_there() -> None:
    with connected() as (inbox, receiver, connection):
        place = inbox.places[8] = np.zeros(5, dtype=np.float32)
        sent_over(connection, lambda sender: sender.send(header_of(5, offset=8), [np.arange(5, dtype=np.float32)]))
        receiver.join()
        assert [in_place for _, _, in_place in inbox.frames] == [True]
        assert place.tolist() == [0, 1, 2, 3, 4]


def test_callbacks_come_between_the_frames_around_them() -> None:
    with connected() as (_, receiver, connection):
        seen: list[int] = []

        def act(sender: DirectSender) -> None:
            sender.send(header_of(1), [np.zeros(1, dtype=np.float32)])
            sender.after(lambda: seen.append(sender.sent_bytes))
            sender.send(header_of(2), [np.zeros(2, dtype=np.float32)])

        sent_over(connection, act)
        receiver.join()
        assert seen == [HEADER_BYTES + 4]


def raw_header(magic: int = 0x74616868, kind: int = 1, count: int = 2) -> bytes:
    return struct.pack("<IIQIIQQ", magic, kind, 5, 9, 2, 0, count)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (raw_header(magic=1), FrameError, "worker 3: not the header of a frame"),
        (raw_header(kind=99), FrameError, "worker 3: not the header of a frame"),
        (raw_header(count=MAX_PAYLOAD_BYTES // 4 + 1), FrameError, "a frame of 1048577 values; expected at most"),
        (raw_header(count=2**62), FrameError, "expected at most 4194304 bytes"),
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
        told = inbox.errors.get(timeout=20)
        assert isinstance(told, error)
        assert message in str(told)
        assert not inbox.frames


def test_a_sender_says_that_its_connection_broke() -> None:
    errors: SimpleQueue[TaihuError] = SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=20)
        near.settimeout(None)
        far, _ = server.accept()
        sender = DirectSender(near, "worker 4", errors.put)
        far.close()
        values = np.zeros(1 << 20, dtype=np.float32)
        for _ in range(64):
            sender.send(header_of(len(values)), [values])
        assert str(errors.get(timeout=20)) == "worker 4 was lost: its connection broke"
        sender.close(20)


def test_a_peer_that_does_not_read_does_not_hold_up_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=20)
        near.settimeout(None)
        far, _ = server.accept()
        errors: list[TaihuError] = []
        sender = DirectSender(near, "worker 4", errors.append)
        values = np.zeros(8 << 20, dtype=np.float32)
        sender.send(header_of(1), [values])
        sender.close(0.1)
        assert not errors
        far.close()


@pytest.mark.parametrize("said", [b"", b"short", b"\0" * TOKEN_BYTES])
def test_who_does_not_know_the_token_is_shown_the_door(said: bytes) -> None:
    connections: SimpleQueue[socket.socket] = SimpleQueue()
    listener = DirectListener()
    token = listener.expect(connections.put)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=20) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""
    with socket.create_connection(("127.0.0.1", listener.port), timeout=20) as friend:
        friend.sendall(token)
        connections.get(timeout=20).close()
    # A token is good once.
    with socket.create_connection(("127.0.0.1", listener.port), timeout=20) as late:
        late.sendall(token)
        assert late.recv(1) == b""
    listener.close()
    assert connections.empty()
    assert not [thread for thread in threading.enumerate() if thread.name == "direct-accept"]
