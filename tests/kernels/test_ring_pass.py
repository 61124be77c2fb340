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
REPEATED = 1
AGAIN, TAKEN = 1, 2
HEADER_BYTES = 32
WORD_BYTES = 16
UNTOUCHED = 0xA5
# Longer than any of it takes.
JOIN_S = 600.0
# Words say its low half.
NUMBER = 5 << 32 | 0xFFFFFFF0

Range = tuple[int, int]
Values = NDArray[np.float32]


def header_bytes(index: int, payload: bytes, *, number: int = NUMBER, magic: int = MAGIC, flags: int = 0) -> bytes:
    content = struct.pack("<IIQIII", magic, flags, number, index, len(payload), crc32c(payload))
    return content + struct.pack("<I", crc32c(content))


def frame_bytes(index: int, payload: bytes, flags: int = 0) -> bytes:
    return header_bytes(index, payload, flags=flags) + payload


def word_bytes(kind: int, index: int, number: int = NUMBER) -> bytes:
    """A word as it is said, twice."""
    content = struct.pack("<III", kind, index, number & 0xFFFFFFFF)
    return 2 * (content + struct.pack("<I", crc32c(content)))


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
        self._rooms = np.full((4, 4 * int(max(sizes, default=0))), UNTOUCHED, dtype=np.uint8)
        self._state = self._begun()

    def _begun(self) -> NDArray[Any]:
        states = np.zeros(1, dtype=STATE)
        state, own, other = states[0], len(self.sum.own), len(self.sum.other)
        state["left"], state["right"], state["number"] = self._left.fileno(), self._right.fileno(), NUMBER
        state["sends"] = state["receives"] = own + other
        state["own"], state["added"], state["completed_from"] = own, other, self.sum.completed_from
        state["taken"] = not own + other
        return states

    def go_on(self, timeout_ms: int = 0) -> Status:
        """Let the kernel do what can be done at once, or until nothing has moved for so long."""
        frames = self._pieces, self._frames, self._checksums
        status = run_pass(self._state, *frames, self.memory, self._rooms[1:3], False, self.sum.scale, timeout_ms)
        assert (self._rooms[[0, 3]] == UNTOUCHED).all()
        return Status(status)

    def fill_left(self) -> int:
        """Let there be no room for what it says to the left; returns the number of bytes that are in the way."""
        count = 0
        with suppress(BlockingIOError):
            while True:
                count += self._left.send(bytes(1 << 12), socket.MSG_DONTWAIT)
        return count

    def all_sent(self) -> bytes:
        """The bytes that it has sent to the right."""
        return _received(self.right)

    def all_said(self) -> bytes:
        """The bytes that it has said to the left."""
        return _received(self.left)

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
    """All has come; once the test has taken everything, the sum is done."""
    of = rank.sum
    if of.comes:
        rank.right.sendall(word_bytes(TAKEN, len(of.goes)))
    assert rank.go_on() is Status.DONE
    assert rank.memory.tobytes() == of.after.tobytes()


def numbered(contents: Sequence[bytes]) -> list[bytes]:
    return [frame_bytes(index, content) for index, content in enumerate(contents)]


@settings(max_examples=200)
@given(sums(), st.lists(st.integers(1, 60), min_size=1, max_size=20), st.booleans())
def test_bytes_go_as_they_are_described_however_they_come(of: Sum, lengths: list[int], is_heard_late: bool) -> None:
    with begun(of) as rank:
        content, at, turn = b"".join(numbered(of.comes)), 0, 0
        # Results come of what has been sent.
        assert rank.go_on() is (Status.WAITING if of.comes else Status.DONE)
        while at < len(content):
            length = lengths[turn % len(lengths)]
            rank.left.sendall(content[at : at + length])
            at, turn = at + length, turn + 1
            assert rank.go_on() is Status.WAITING
        assert rank.all_sent() == b"".join(numbered(of.goes))
        assert rank.all_said() == (word_bytes(TAKEN, len(of.comes)) if of.comes else b"")
        if of.comes and is_heard_late:
            word = word_bytes(TAKEN, len(of.goes))
            rank.right.sendall(word[: lengths[0] % len(word)])
            assert rank.go_on() is Status.WAITING
            rank.right.sendall(word[lengths[0] % len(word) :])
            assert rank.go_on() is Status.DONE
            assert rank.memory.tobytes() == of.after.tobytes()
        else:
            check_end(rank)


def test_a_sum_is_not_done_before_it_is_said_that_all_has_come() -> None:
    of = Sum([[(1, 9)]], [[(9, 20)]], 0, 1.0, 2)
    with begun(of) as rank:
        in_the_way = rank.fill_left()
        rank.left.sendall(b"".join(numbered(of.comes)))
        assert rank.go_on() is Status.WAITING
        rank.right.sendall(word_bytes(TAKEN, len(of.goes)))
        assert rank.go_on() is Status.WAITING
        assert len(rank.all_said()) == in_the_way
        assert rank.go_on() is Status.DONE
        assert rank.all_said() == word_bytes(TAKEN, len(of.comes))


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
    in_the_way = rank.fill_left()
    rank.left.sendall(b"".join(comes[len(of.other) :]))
    word = word_bytes(TAKEN, len(goes))
    rank.right.sendall(word[:20])
    assert read(rank.left, in_the_way) == bytes(in_the_way)
    assert read(rank.left, len(word)) == word_bytes(TAKEN, len(comes))
    rank.right.sendall(word[20:])


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
def test_a_frame_that_comes_damaged_is_asked_for_again(of: Sum, data: st.DataObject) -> None:
    """Frames behind it are dropped until then, whole or not."""
    frames = numbered(of.comes)
    index = data.draw(st.integers(0, len(frames) - 1))
    last = data.draw(st.integers(index + 1, len(frames)))
    dropped = frames[index + 1 : last]
    damaged = flipped(frames[index], data.draw(st.integers(0, 8 * len(frames[index]) - 1)))
    is_damaged_too = data.draw(st.booleans())
    if dropped and is_damaged_too:
        dropped[-1] = flipped(dropped[-1], data.draw(st.integers(8 * HEADER_BYTES, 8 * len(dropped[-1]) - 1)))
    with begun(of) as rank:
        assert rank.go_on() is Status.WAITING
        rank.left.sendall(b"".join([*frames[:index], damaged, *dropped]))
        assert [rank.go_on() for _ in range(3)] == [Status.DAMAGED, Status.WAITING, Status.WAITING]
        assert rank.all_said() == word_bytes(AGAIN, index)
        rank.left.sendall(frame_bytes(index, of.comes[index], REPEATED) + b"".join(frames[index + 1 :]))
        assert rank.go_on() is Status.WAITING
        assert rank.all_said() == word_bytes(TAKEN, len(frames))
        assert rank.all_sent() == b"".join(numbered(of.goes))
        check_end(rank)


@settings(max_examples=60)
@given(sums(least=1), st.integers(0, 10**6))
def test_every_frame_may_come_damaged_once(of: Sum, bit: int) -> None:
    with begun(of) as rank:
        assert rank.go_on() is Status.WAITING
        for index, content in enumerate(of.comes):
            frame = frame_bytes(index, content)
            rank.left.sendall(flipped(frame, bit % (8 * len(frame))))
            assert [rank.go_on() for _ in range(2)] == [Status.DAMAGED, Status.WAITING]
            rank.left.sendall(frame_bytes(index, content, REPEATED))
            assert rank.go_on() is Status.WAITING
        assert rank.all_sent() == b"".join(numbered(of.goes))
        check_end(rank)


@settings(max_examples=100)
@given(sums(least=1), st.data())
def test_a_frame_that_comes_damaged_twice_is_not_asked_for_again(of: Sum, data: st.DataObject) -> None:
    frames = numbered(of.comes)
    index = data.draw(st.integers(0, len(frames) - 1))
    first, second = frames[index], frame_bytes(index, of.comes[index], REPEATED)
    bits = [data.draw(st.integers(0, 8 * len(first) - 1)) for _ in range(2)]
    with begun(of) as rank:
        rank.left.sendall(b"".join([*frames[:index], flipped(first, bits[0]), flipped(second, bits[1])]))
        assert [rank.go_on() for _ in range(2)] == [Status.DAMAGED, Status.DAMAGED_TWICE]


@settings(max_examples=100)
@given(sums(least=2), st.data())
def test_of_dropped_frames_headers_must_be_whole(of: Sum, data: st.DataObject) -> None:
    """Nothing else says where the next frame begins."""
    frames = numbered(of.comes)
    index = data.draw(st.integers(0, len(frames) - 2))
    dropped = flipped(frames[index + 1], data.draw(st.integers(0, 8 * HEADER_BYTES - 1)))
    with begun(of) as rank:
        rank.left.sendall(b"".join([*frames[:index], flipped(frames[index], 0), dropped]))
        assert [rank.go_on() for _ in range(2)] == [Status.DAMAGED, Status.DAMAGED_TWICE]


@settings(max_examples=100)
@given(sums(least=1), st.lists(st.integers(0, 10**6), min_size=1, max_size=3))
def test_what_is_asked_for_again_is_sent_from_there_on(of: Sum, asked: list[int]) -> None:
    indices = sorted(drawn % len(of.goes) for drawn in asked)
    with begun(of) as rank:
        assert rank.go_on() is Status.WAITING
        # Of what the other rank has not taken it has no results.
        come = len(of.other) + min(indices[0], len(of.own))
        rank.left.sendall(b"".join(numbered(of.comes)[:come]))
        assert rank.go_on() is Status.WAITING
        assert rank.all_sent() == b"".join(numbered(of.goes))
        for index in indices:
            rank.right.sendall(word_bytes(AGAIN, index))
            assert rank.go_on() is Status.WAITING
            repeated = frame_bytes(index, of.goes[index], REPEATED)
            assert rank.all_sent() == repeated + b"".join(numbered(of.goes)[index + 1 :])
        rank.left.sendall(b"".join(numbered(of.comes)[come:]))
        assert rank.go_on() is Status.WAITING
        assert not rank.all_sent()
        check_end(rank)


# More than a connection holds; frames of several ranges are sent from a copy, which the repetition is, too.
@pytest.mark.parametrize("second", [[(200_001, 400_001)], [(200_001, 300_001), (300_005, 400_005)]])
def test_a_frame_that_is_under_way_comes_to_its_end_before_the_repetition(second: list[Range]) -> None:
    """Whoever asked would otherwise take the repetition for the rest of it."""
    frames = [[(1, 100_001), (100_003, 200_001)], second]
    of = Sum(frames, [[(400_010, 400_011)]], 0, 1.0, 1)
    with begun(of) as rank:
        first, following, *rest = numbered(of.goes)
        sent = b""
        while len(sent) <= len(first):
            assert rank.go_on() is Status.WAITING
            sent += rank.right.recv(len(first) + 1 - len(sent))
        rank.right.sendall(word_bytes(AGAIN, 0))
        rank.left.sendall(numbered(of.comes)[0])
        expected = first + following + frame_bytes(0, of.goes[0], REPEATED) + b"".join([following, *rest])
        while more := rank.all_sent():
            sent += more
            assert rank.go_on() is Status.WAITING
        assert sent == expected


@settings(max_examples=100)
@given(sums(least=1), st.integers(0, 8 * 2 * WORD_BYTES - 1), st.booleans())
def test_one_of_the_two_copies_of_a_word_is_enough(of: Sum, bit: int, is_asked: bool) -> None:
    with begun(of) as rank:
        assert rank.go_on() is Status.WAITING
        rank.all_sent()
        if is_asked:
            rank.right.sendall(flipped(word_bytes(AGAIN, 0), bit))
            assert rank.go_on() is Status.WAITING
            assert rank.all_sent().startswith(frame_bytes(0, of.goes[0], REPEATED))
        rank.left.sendall(b"".join(numbered(of.comes)))
        assert rank.go_on() is Status.WAITING
        rank.right.sendall(flipped(word_bytes(TAKEN, len(of.goes)), bit))
        assert rank.go_on() is Status.DONE


wrong_headers = st.sampled_from(
    [
        {"number": NUMBER - 1},
        {"number": NUMBER + 1},
        {"number": NUMBER & 0xFFFFFFFF},
        {"magic": MAGIC + 1},
        {"flags": 2},
        {"index": 1},
        {"index": -1},
        {"size": 4},
        {"size": -4},
    ]
)


def wrong_header(index: int, content: bytes, changes: dict[str, int], flags: int = 0) -> bytes:
    """A whole header of another frame."""
    changed = {"flags": flags, **changes}
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


@settings(max_examples=100)
@given(sums(least=2), wrong_headers, st.booleans(), st.data())
def test_another_frame_in_place_of_a_repetition_ends_the_sum(
    of: Sum, changes: dict[str, int], is_repeated: bool, data: st.DataObject
) -> None:
    frames = numbered(of.comes)
    index = data.draw(st.integers(0, len(frames) - 2))
    # Of what is dropped nobody looks at the rest.
    changes = changes if is_repeated else {name: changes[name] for name in changes if name in {"index", "size"}}
    if is_repeated:
        header = wrong_header(index, of.comes[index], changes, REPEATED)
    else:
        header = wrong_header(index + 1, of.comes[index + 1], changes or {"index": 1})
    with begun(of) as rank:
        rank.left.sendall(b"".join([*frames[:index], flipped(frames[index], 9), header]))
        assert [rank.go_on() for _ in range(2)] == [Status.DAMAGED, Status.WRONG_FRAME]


@settings(max_examples=100)
@given(sums(least=1), st.integers(0, 127), st.integers(128, 255), st.data())
def test_a_word_that_makes_no_sense_ends_the_sum(of: Sum, first: int, second: int, data: st.DataObject) -> None:
    count = len(of.goes)
    words = [
        word_bytes(0, 0),
        word_bytes(3, 0),
        word_bytes(TAKEN, count - 1),
        word_bytes(TAKEN, count + 1),
        word_bytes(AGAIN, count + 1),
        word_bytes(TAKEN, count, NUMBER + 1),
        word_bytes(AGAIN, 0, NUMBER - 1),
        flipped(flipped(word_bytes(TAKEN, count), first), second),
    ]
    with begun(of) as rank:
        rank.left.sendall(b"".join(numbered(of.comes)))
        assert rank.go_on() is Status.WAITING
        rank.right.sendall(data.draw(st.sampled_from(words)))
        assert rank.go_on() is Status.WRONG_WORD


@settings(max_examples=50)
@given(sums(least=1))
def test_nobody_has_taken_what_has_not_been_sent(of: Sum) -> None:
    with begun(of) as rank:
        rank.right.sendall(word_bytes(TAKEN, len(of.goes)))
        assert rank.go_on() is Status.WRONG_WORD


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


@settings(max_examples=100)
@given(sums(least=1), st.booleans(), st.data())
def test_a_left_neighbour_that_leaves_before_the_repetition_is_lost(
    of: Sum, is_abrupt: bool, data: st.DataObject
) -> None:
    frames = numbered(of.comes)
    content = b"".join(frames[1:])[: data.draw(st.integers(0, sum(map(len, frames[1:]))))]
    with begun(of) as rank:
        rank.left.sendall(flipped(frames[0], 8 * HEADER_BYTES) + content)
        end(rank.left, is_abrupt)
        assert [rank.go_on() for _ in range(2)] == [Status.DAMAGED, Status.LOST_LEFT]


@settings(max_examples=100)
@given(sums(least=1), st.booleans(), st.integers(0, 2 * WORD_BYTES - 1), st.booleans())
def test_a_right_neighbour_that_leaves_before_it_has_taken_all_is_lost(
    of: Sum, is_abrupt: bool, said: int, has_all: bool
) -> None:
    with begun(of) as rank:
        rank.left.sendall(b"".join(numbered(of.comes)))
        if has_all:
            assert rank.go_on() is Status.WAITING
        rank.right.sendall(word_bytes(TAKEN, len(of.goes))[:said])
        end(rank.right, is_abrupt)
        assert rank.go_on() is Status.LOST_RIGHT


@settings(max_examples=50)
@given(sums(least=1), st.booleans())
def test_a_left_neighbour_may_leave_when_all_has_come(of: Sum, is_abrupt: bool) -> None:
    with begun(of) as rank:
        rank.left.sendall(b"".join(numbered(of.comes)))
        assert rank.go_on() is Status.WAITING
        assert rank.all_said() == word_bytes(TAKEN, len(of.comes))
        end(rank.left, is_abrupt)
        check_end(rank)


@settings(max_examples=300)
@given(sums(least=1), st.integers(0, 400), st.binary(max_size=300), st.binary(max_size=80), st.integers(0, 2))
def test_whatever_comes_the_kernel_ends_and_writes_to_its_ranges_alone(
    of: Sum, whole: int, left: bytes, right: bytes, headers: int
) -> None:
    content = b"".join(numbered(of.comes))[:whole] + left
    for index in range(headers):
        content += header_bytes(index, bytes(4), flags=REPEATED) + left
    with begun(of) as rank:
        rank.left.sendall(content)
        rank.right.sendall(right)
        for each in (rank.left, rank.right):
            each.shutdown(socket.SHUT_WR)
        statuses = [rank.go_on()]
        while statuses[-1] in {Status.WAITING, Status.DAMAGED}:
            statuses.append(rank.go_on())
            assert len(statuses) < 20
        assert statuses[-1] < 0
        outside = np.ones(of.count, dtype=bool)
        for start, stop in (piece for frame in of.all_frames for piece in frame):
            outside[start:stop] = False
        assert rank.memory[outside].tobytes() == of.before[outside].tobytes()
