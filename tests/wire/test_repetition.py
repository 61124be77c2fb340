"""Frames are taken once, in order, whatever comes damaged; or the link is named."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frames import header_of

from taihu.core.base.errors import DamagedFrameError, FrameError, TaihuError
from taihu.core.wire.identity import Sender
from taihu.core.wire.kinds import Again, Repetition, Word
from taihu.core.wire.patience import Patience
from taihu.core.wire.repetition import DAMAGED, ArrivingFrames, OutgoingFrame, SentFrames
from taihu.core.wire.sink import Origin

ORIGIN = Origin("worker 0", Sender("job", 1, 0), "worker 1")
BAD = DamagedFrameError("checksum 1, expected 2")


def frame(number: int) -> OutgoingFrame:
    return OutgoingFrame(header_of("job", 1, 1, 1, 0, number, 1), [np.full(1, number, dtype=np.float32)])


class Direction:
    """One direction of a link: a sender, what is under way, and a receiver; words take effect when they arrive.

    `damaged` are the transmissions that come damaged, counted from 0.
    """

    def __init__(self, frames: int, damaged: frozenset[int]) -> None:
        self.unsent = deque(range(frames))
        self.sent = SentFrames("worker 1")
        self.damaged = damaged
        self.transmissions = 0
        self.under_way: deque[int | Repetition] = deque()
        self.wishes: deque[int] = deque()
        self.got: list[int] = []
        self.repeated: list[int] = []
        self.arriving = ArrivingFrames(ORIGIN, self, self.late)

    def say(self, word: Word) -> None:
        assert isinstance(word, Again)
        self.wishes.append(word.number)

    def repeat(self, number: int) -> None:
        self.repeated.append(number)

    def taken(self, number: int) -> None:
        self.sent.taken(number)

    def late(self, error: TaihuError) -> None:
        raise AssertionError(error)

    def moves(self) -> list[str]:
        return [*["send"] * bool(self.unsent), *["answer"] * bool(self.wishes), *["deliver"] * bool(self.under_way)]

    def move(self, name: str) -> None:
        if name == "send":
            number = self.unsent.popleft()
            self.sent.add(frame(number), 4)
            self.under_way.append(number)
        elif name == "answer":
            asked = self.wishes.popleft()
            self.under_way.append(Repetition(asked))
            self.under_way.extend(each.header.address.offset for each in self.sent.since(asked))
        else:
            self.deliver(self.under_way.popleft())

    def deliver(self, came: int | Repetition) -> None:
        if isinstance(came, Repetition):
            self.arriving.hear(came)
            return
        self.transmissions += 1
        if self.transmissions - 1 in self.damaged:
            self.arriving.refuse(BAD)
        elif self.arriving.admits():
            self.arriving.took()
            self.got.append(came)


@given(st.integers(0, 12), st.frozensets(st.integers(0, 30), max_size=4), st.randoms(use_true_random=False))
def test_frames_are_taken_once_and_in_order(frames: int, damaged: frozenset[int], random: Random) -> None:
    direction = Direction(frames, damaged)
    before = DAMAGED.count
    refused = ""
    # Hypothesis may end an example within the loop: nothing may go on to wait for a repetition then.
    with closing(direction.arriving):
        while moves := direction.moves():
            try:
                direction.move(random.choice(moves))
            except DamagedFrameError as error:
                refused = str(error)
                break
    assert direction.got == list(range(len(direction.got)))
    assert DAMAGED.count - before == sum(each < direction.transmissions for each in damaged)
    if refused:
        expected = f"the link from worker 0 to worker 1: frame {len(direction.got)} came damaged twice: {BAD}"
        assert refused.startswith(expected)
        assert len(damaged) > 1
    else:
        assert direction.got == list(range(frames))
        direction.arriving.end()


@given(st.integers(1, 12), st.integers(0, 11), st.randoms(use_true_random=False))
def test_one_damaged_frame_is_made_good(frames: int, damaged: int, random: Random) -> None:
    direction = Direction(frames, frozenset([damaged]))
    with closing(direction.arriving):
        while moves := direction.moves():
            direction.move(random.choice(moves))
    direction.arriving.close()
    assert direction.got == list(range(frames))


def test_a_word_that_came_damaged_itself_is_said_again() -> None:
    """The other side heard nothing of a question: it asks for its next frame, which nobody has sent."""
    direction = Direction(1, frozenset([0]))
    direction.move("send")
    direction.move("deliver")
    assert direction.wishes.popleft() == 0
    direction.arriving.hear(Again(7))
    assert (direction.repeated, list(direction.wishes)) == ([7], [0])
    # Both may arrive in the end: what was taken is not taken again.
    direction.wishes.append(0)
    while moves := direction.moves():
        direction.move(moves[0])
    direction.arriving.close()
    assert direction.got == [0]


def test_a_repetition_of_what_never_came_is_refused() -> None:
    direction = Direction(0, frozenset())
    with pytest.raises(FrameError, match=r"from worker 0 to worker 1: frame 1 is repeated, expected one up to 0"):
        direction.arriving.hear(Repetition(1))


def test_a_link_that_ends_before_it_repeats_is_named() -> None:
    direction = Direction(1, frozenset([0]))
    direction.move("send")
    direction.move("deliver")
    with pytest.raises(DamagedFrameError, match=r"worker 0 to worker 1: it ended before frame 0, which came damaged"):
        direction.arriving.end()


def test_a_link_without_a_way_back_refuses_at_once() -> None:
    arriving = ArrivingFrames(ORIGIN, None, lambda error: None)
    with pytest.raises(DamagedFrameError, match=r"from worker 0 to worker 1: frame 0 came damaged: checksum 1"):
        arriving.refuse(BAD)


def test_a_repetition_that_does_not_come_is_told() -> None:
    direction = Direction(1, frozenset([0]))
    told: deque[TaihuError] = deque()
    arriving = ArrivingFrames(replace(ORIGIN, patience=Patience(0.01)), direction, told.append)
    arriving.refuse(BAD)
    assert arriving._timer is not None
    arriving._timer.join(120)
    assert "the link from worker 0 to worker 1: frame 0 came damaged, and was not repeated within" in str(told.pop())


def test_what_has_changed_since_is_not_sent_in_its_place() -> None:
    sent = SentFrames("worker 1")
    values = [np.zeros(3, dtype=np.float32), np.zeros(2, dtype=np.float32)]
    sent.add(OutgoingFrame(header_of("job", 1, 1, 4, 2, 0, 5), values), 20)
    assert [each.header.address.group for each in sent.since(0)] == [2]
    values[1][1] = 1
    with pytest.raises(FrameError, match=r"sent to worker 1 came damaged, .* have changed since: gradients, gro"):
        sent.since(0)


@given(st.lists(st.integers(1, 30), max_size=30))
def test_as_many_frames_are_kept_as_may_be_under_way(sizes: list[int]) -> None:
    sent = SentFrames("worker 1")
    sent.most_bytes, sent.most_frames = 60, 7
    for number, size in enumerate(sizes):
        sent.add(frame(number), size)
    kept = 0
    while kept < min(7, len(sizes)) and (not kept or sum(sizes[len(sizes) - kept - 1 :]) <= 60):
        kept += 1
    first = len(sizes) - kept
    assert [each.header.address.offset for each in sent.since(first)] == list(range(first, len(sizes)))
    for number in (first - 1, len(sizes) + 1):
        with pytest.raises(FrameError, match=f"worker 1 asks for frame {number} again: expected one of the last"):
            sent.since(number)
