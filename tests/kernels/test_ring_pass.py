"""One rank's part in a sum of two, byte by byte: the test is the other rank, and nothing runs beside it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.flips import flipped

from taihu.kernels.crc32c import HAS_INSTRUCTION
from taihu.kernels.ring_pass import STATE, Status, run_pass

pytestmark = pytest.mark.skipif(not HAS_INSTRUCTION, reason="this processor has no instruction for checksums")

MAGIC = 0x67726874
HEADER_BYTES = 32
UNTOUCHED = 0xA5
# Longer than any of it takes.
JOIN_S = 600.0
NUMBER = 5 << 32 | 0xFFFFFFF0

Range = tuple[int, int]
Values = NDArray[np.float32]


def header_bytes(index: int, payload: bytes, *, number: int = NUMBER, magic: int = MAGIC) -> bytes:
    content = struct.pack("<QQIII", magic, number, index, len(payload), crc32c(payload))
    return content + struct.pack("<I", crc32c(content))


def frame_bytes(index: int, payload: bytes) -> bytes:
    return header_bytes(index, payload) + payload


@dataclass(frozen=True)
class Sum:
    """A sum of two ranks: the frames of the kernel's chunk and of the test's, each of some ranges of values.

    The kernel sends its own frames, adds the test's, sends the sums, and takes over those of its own chunk.
    """

    own: Sequence[Sequence[Range]]
    other: Sequence[Sequence[Range]]
    completed_from: int
    scale: float
    seed: int

    @property
    def all_frames(self) -> list[Sequence[Range]]:
        return [*self.own, *self.other, *self.own]

    @property
    def count(self) -> int:
        """The number of values; some at the ends and between ranges are in no frame."""
        return 2 + max((stop for frame in self.all_frames for _, stop in frame), default=0)

    @property
    def before(self) -> Values:
        return self._values(0)

    @property
    def theirs(self) -> Values:
        """The values of the test's rank, and what it completes of the kernel's chunk."""
        return self._values(1)

    @property
    def after(self) -> Values:
        """The values that the kernel must end with."""
        values, theirs = self.before, self.theirs
        for index, frame in enumerate(self.other):
            for start, stop in frame:
                values[start:stop] += theirs[start:stop]
                if index >= self.completed_from:
                    values[start:stop] *= np.float32(self.scale)
        for start, stop in (piece for frame in self.own for piece in frame):
            values[start:stop] = theirs[start:stop]
        return values

    @property
    def comes(self) -> list[bytes]:
        """The contents of frames that the kernel receives."""
        return [_content(self.theirs, frame) for frame in (*self.other, *self.own)]

    @property
    def goes(self) -> list[bytes]:
        """The contents of frames that the kernel must send."""
        return [_content(self.before, frame) for frame in self.own] + [
            _content(self.after, frame) for frame in self.other
        ]

    def _values(self, rank: int) -> Values:
        return np.random.default_rng([self.seed, rank]).standard_normal(self.count, dtype=np.float32)


def _content(values: Values, frame: Sequence[Range]) -> bytes:
    return b"".join(values[start:stop].tobytes() for start, stop in frame)


@st.composite
def sums(draw: st.DrawFn, least: int = 0) -> Sum:
    """Sums of a few frames of a few values; at least so many frames of either chunk."""
    frames = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=least, max_size=4)
    at, chunks = 1, []
    for lengths in (draw(frames), draw(frames)):
        chunk = []
        for frame in lengths:
            ranges = []
            for length in frame:
                at += draw(st.integers(0, 2))
                ranges.append((at, at + length))
                at += length
            chunk.append(ranges)
        chunks.append(chunk)
    completed_from = draw(st.integers(0, len(chunks[1])))
    return Sum(
        chunks[0], chunks[1], completed_from, draw(st.sampled_from([1.0, 0.5, 1 / 3])), draw(st.integers(0, 99))
    )


class Rank:
    """The kernel's rank. `left` and `right` are the test's ends of its connections."""

    def __init__(self, of: Sum) -> None:
        self.sum = of
        self.left, self._left = socket.socketpair()
        self.right, self._right = socket.socketpair()
        self.memory = of.before
        frames = of.all_frames
        stops = np.cumsum([0, *map(len, frames)])
        pieces = np.array([piece for frame in frames for piece in frame], dtype=np.int64).reshape(-1, 2)
        self._pieces = 4 * np.stack([pieces[:, 0], pieces[:, 1] - pieces[:, 0]], axis=1)
        sizes = np.array([sum(stop - start for start, stop in frame) for frame in frames], dtype=np.int64)
        self._frames = np.stack([stops[:-1], stops[1:], 4 * sizes], axis=1)
        self._checksums = np.full(len(frames), -1, dtype=np.int64)
        # The first and last rows are nobody's.
        self._rooms = np.full((3, 4 * int(max(sizes, default=0))), UNTOUCHED, dtype=np.uint8)
        self._state = self._begun()

    def _begun(self) -> NDArray[Any]:
        states = np.zeros(1, dtype=STATE)
        state, own, other = states[0], len(self.sum.own), len(self.sum.other)
        state["left"], state["right"], state["number"] = self._left.fileno(), self._right.fileno(), NUMBER
        state["sends"] = state["receives"] = own + other
        state["own"], state["added"], state["completed_from"] = own, other, self.sum.completed_from
        return states

    def go_on(self, timeout_ms: int = 0) -> Status:
        """Let the kernel do what can be done at once, or until nothing has moved for so long."""
        frames = self._pieces, self._frames, self._checksums
        status = run_pass(self._state, *frames, self.memory, self._rooms[1], False, self.sum.scale, timeout_ms)
        assert (self._rooms[[0, 2]] == UNTOUCHED).all()
        return Status(status)

    def all_sent(self) -> bytes:
        """The bytes that it has sent to the right."""
        return _received(self.right)

    def close(self) -> None:
        for each in (self.left, self.right, self._left, self._right):
            each.close()


def _received(connection: socket.socket) -> bytes:
    content = bytearray()
    with suppress(BlockingIOError):
        while some := connection.recv(1 << 20, socket.MSG_DONTWAIT):
            content += some
    return bytes(content)


@contextmanager
def begun(of: Sum) -> Iterator[Rank]:
    rank = Rank(of)
    try:
        yield rank
    finally:
        rank.close()


def check_end(rank: Rank) -> None:
    """All has come: the sum is done, and nothing has been said to the left."""
    assert rank.go_on() is Status.DONE
    assert rank.memory.tobytes() == rank.sum.after.tobytes()
    assert rank.all_sent() == b"".join(numbered(rank.sum.goes))
    assert not _received(rank.left)


def numbered(contents: Sequence[bytes]) -> list[bytes]:
    return [frame_bytes(index, content) for index, content in enumerate(contents)]


@settings(max_examples=200)
@given(sums(), st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_bytes_go_as_they_are_described_however_they_come(of: Sum, lengths: list[int]) -> None:
    with begun(of) as rank:
        content, at, turn = b"".join(numbered(of.comes)), 0, 0
        # Results come of what has been sent.
        status = rank.go_on()
        while at < len(content):
            assert status is Status.WAITING
            length = lengths[turn % len(lengths)]
            rank.left.sendall(content[at : at + length])
            at, turn = at + length, turn + 1
            status = rank.go_on()
        assert status is Status.DONE
        check_end(rank)


def test_a_frame_may_have_more_ranges_than_a_call_takes() -> None:
    """Linux takes 1,024 places at a time, of which one is the header."""

    def many(first: int) -> list[Range]:
        return [(at, at + 1 + at % 2) for at in range(first, first + 4 * 2500, 4)]

    of = Sum([many(1)], [many(10_003)], 0, 0.5, 3)
    with begun(of) as rank:
        rank.left.sendall(numbered(of.comes)[0])
        status = rank.go_on()
        sent = rank.all_sent()
        assert status is Status.WAITING
        rank.left.sendall(numbered(of.comes)[1])
        assert rank.go_on() is Status.DONE
        assert rank.memory.tobytes() == of.after.tobytes()
        assert sent + rank.all_sent() == b"".join(numbered(of.goes))


def read(connection: socket.socket, size: int) -> bytes:
    """The next bytes, which are waited for."""
    connection.settimeout(JOIN_S)
    content = bytearray()
    while len(content) < size and (some := connection.recv(size - len(content))):
        content += some
    return bytes(content)


def play_other_rank(rank: Rank) -> None:
    """Each frame comes when all that goes before it has been read: the kernel waits for it."""
    own, of = len(rank.sum.own), rank.sum
    comes, goes = numbered(of.comes), numbered(of.goes)
    for frame in goes[:own]:
        assert read(rank.right, len(frame)) == frame
    for frame, sum_of_it in zip(comes, goes[own:], strict=False):
        rank.left.sendall(frame)
        assert read(rank.right, len(sum_of_it)) == sum_of_it
    rank.left.sendall(b"".join(comes[len(of.other) :]))


def test_who_waits_goes_on_when_there_is_something_to_receive_or_room_to_send() -> None:
    """Time is over much later than this test is; frames are larger than what a connection holds."""
    of = Sum([[(1, 200_001)], [(200_001, 200_002)]], [[(200_003, 400_001)], [(400_001, 400_009)]], 1, 0.5, 2)
    statuses: list[Status] = []
    with begun(of) as rank:
        kernel = threading.Thread(target=lambda: statuses.append(rank.go_on(1_000_000)), daemon=True)
        kernel.start()
        play_other_rank(rank)
        kernel.join(JOIN_S)
        assert statuses == [Status.DONE]
        assert rank.memory.tobytes() == of.after.tobytes()


@settings(max_examples=150)
@given(sums(least=1), st.data())
def test_a_frame_goes_on_as_soon_as_it_has_come(of: Sum, data: st.DataObject) -> None:
    """Nothing behind it is waited for."""
    come = data.draw(st.integers(0, len(of.other)))
    with begun(of) as rank:
        rank.left.sendall(b"".join(numbered(of.comes)[:come]))
        assert rank.go_on() is Status.WAITING
        assert rank.all_sent() == b"".join(numbered(of.goes)[: len(of.own) + come])


@settings(max_examples=200)
@given(sums(least=1), st.data())
def test_a_frame_that_comes_damaged_ends_the_sum_before_anything_is_made_of_it(of: Sum, data: st.DataObject) -> None:
    frames = numbered(of.comes)
    index = data.draw(st.integers(0, len(frames) - 1))
    damaged = flipped(frames[index], data.draw(st.integers(0, 8 * len(frames[index]) - 1)))
    with begun(of) as rank:
        assert rank.go_on() is Status.WAITING
        rank.left.sendall(b"".join([*frames[:index], damaged, *frames[index + 1 :]]))
        assert rank.go_on() is Status.DAMAGED
        assert rank.all_sent() == b"".join(numbered(of.goes)[: len(of.own) + min(index, len(of.other))])


# More than a connection holds; frames of several ranges are sent from where these lie.
@pytest.mark.parametrize("second", [[(200_001, 400_001)], [(200_001, 300_001), (300_005, 400_005)]])
def test_a_frame_that_is_under_way_comes_to_its_end_before_the_next(second: list[Range]) -> None:
    frames = [[(1, 100_001), (100_003, 200_001)], second]
    of = Sum(frames, [[(400_010, 400_011)]], 0, 1.0, 1)
    with begun(of) as rank:
        sent, expected = b"", b"".join(numbered(of.goes))
        assert rank.go_on() is Status.WAITING
        rank.left.sendall(numbered(of.comes)[0])
        while more := rank.all_sent():
            sent += more
            assert rank.go_on() is Status.WAITING
        assert sent == expected


wrong_headers = st.sampled_from(
    [
        {"number": NUMBER - 1},
        {"number": NUMBER + 1},
        {"number": NUMBER & 0xFFFFFFFF},
        {"magic": MAGIC + 1},
        {"index": 1},
        {"index": -1},
        {"size": 4},
        {"size": -4},
    ]
)


def wrong_header(index: int, content: bytes, changes: dict[str, int]) -> bytes:
    """A whole header of another frame."""
    changed = dict(changes)
    index = (index + changed.pop("index", 0)) % (1 << 32)
    size = len(content) + changed.pop("size", 0)
    return header_bytes(index, bytes(size), **changed)


@settings(max_examples=100)
@given(sums(least=1), wrong_headers, st.data())
def test_a_whole_frame_that_is_another_one_ends_the_sum(
    of: Sum, changes: dict[str, int], data: st.DataObject
) -> None:
    frames = numbered(of.comes)
    index = data.draw(st.integers(0, len(frames) - 1))
    header = wrong_header(index, of.comes[index], changes)
    with begun(of) as rank:
        rank.left.sendall(b"".join(frames[:index]) + header)
        assert rank.go_on() is Status.WRONG_FRAME


def end(connection: socket.socket, is_abrupt: bool) -> None:
    """Close a connection with what has come unread, or end only the direction that goes from here."""
    if is_abrupt:
        connection.close()
    else:
        connection.shutdown(socket.SHUT_WR)


@settings(max_examples=100)
@given(sums(least=1), st.booleans(), st.data())
def test_a_left_neighbour_that_leaves_amid_its_frames_is_lost(of: Sum, is_abrupt: bool, data: st.DataObject) -> None:
    content = b"".join(numbered(of.comes))
    with begun(of) as rank:
        rank.left.sendall(content[: data.draw(st.integers(0, len(content) - 1))])
        end(rank.left, is_abrupt)
        assert rank.go_on() is Status.LOST_LEFT


@settings(max_examples=50)
@given(sums(least=1), st.data())
def test_a_right_neighbour_that_leaves_before_all_is_sent_is_lost(of: Sum, data: st.DataObject) -> None:
    come = data.draw(st.integers(0, max(0, len(of.other) - 1)))
    with begun(of) as rank:
        if come:
            rank.left.sendall(b"".join(numbered(of.comes)[:come]))
            assert rank.go_on() is Status.WAITING
        rank.right.close()
        rank.left.sendall(b"".join(numbered(of.comes)[come:]))
        assert rank.go_on() is (Status.LOST_RIGHT if come < len(of.other) or not come else Status.DONE)


@settings(max_examples=50)
@given(sums(least=1), st.booleans())
def test_a_left_neighbour_may_leave_when_all_has_come(of: Sum, is_abrupt: bool) -> None:
    with begun(of) as rank:
        assert rank.go_on() is Status.WAITING
        rank.left.sendall(b"".join(numbered(of.comes)))
        end(rank.left, is_abrupt)
        assert rank.go_on() is Status.DONE
        assert rank.memory.tobytes() == of.after.tobytes()


@settings(max_examples=300)
@given(sums(least=1), st.integers(0, 400), st.binary(max_size=300), st.binary(max_size=80), st.integers(0, 2))
def test_whatever_comes_the_kernel_ends_and_writes_to_its_ranges_alone(
    of: Sum, whole: int, left: bytes, right: bytes, headers: int
) -> None:
    content = b"".join(numbered(of.comes))[:whole] + left
    for index in range(headers):
        content += header_bytes(index, bytes(4)) + left
    with begun(of) as rank:
        rank.left.sendall(content)
        rank.right.sendall(right)
        for each in (rank.left, rank.right):
            each.shutdown(socket.SHUT_WR)
        status = rank.go_on()
        assert status is Status.DONE or status < 0
        if status is Status.DONE:
            assert content.startswith(b"".join(numbered(of.comes)))
        outside = np.ones(of.count, dtype=bool)
        for start, stop in (piece for frame in of.all_frames for piece in frame):
            outside[start:stop] = False
        assert rank.memory[outside].tobytes() == of.before[outside].tobytes()
