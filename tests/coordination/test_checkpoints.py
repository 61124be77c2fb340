"""Steps that are kept: the same for all workers, as often as was asked for, and complete with all parts alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import StaleError
from taihu.core.checkpoint.files import PartFile
from taihu.core.coordination.coordinator.checkpoints import CheckpointBook

FILE = PartFile("server-0.safetensors", 10, "0" * 64)


def asked(book: CheckpointBook, step_s: float, *, begun_after: int = 0, until_s: float = 1000.0) -> list[float]:
    """The instants at which steps of `step_s` are kept, where workers ask behind the steps that they are told."""
    now, kept = 0.0, []
    step = book.decide(begun_after, now).next_step
    while now < until_s:
        now = (step - begun_after) * step_s
        decision = book.decide(step, now)
        assert decision.next_step > step
        if decision.keep:
            kept.append(now)
        step = decision.next_step
    return kept


@given(st.floats(1e-3, 2.0), st.integers(0, 10**6))
def test_a_checkpoint_comes_every_interval(step_s: float, begun_after: int) -> None:
    book = CheckpointBook(["worker 0"], every_s=30.0, begun_after=begun_after)
    kept = asked(book, step_s, begun_after=begun_after)
    gaps = [after - before for before, after in pairwise(kept)]
    # Steps are whole, and the first interval begins when it is known what a step takes.
    assert kept[0] <= 30.0 + 30 * step_s
    assert all(30.0 <= gap <= 30.0 + 2 * step_s + 1e-6 for gap in gaps)


@given(st.lists(st.floats(1e-3, 5.0), min_size=300, max_size=300), st.floats(1.0, 20.0))
def test_steps_that_take_longer_than_those_before_are_kept_no_more_often(
    seconds: list[float], every_s: float
) -> None:
    book = CheckpointBook(["worker 0"], every_s=every_s)
    now, kept, ask = 0.0, [], book.decide(0, 0.0).next_step
    for step, taken in enumerate(seconds, 1):
        now += taken
        if step == ask:
            keep, ask = book.decide(step, now)
            kept += [now] if keep else []
    assert all(after - before >= every_s for before, after in pairwise(kept))


def test_all_workers_are_told_the_same_of_a_step() -> None:
    book = CheckpointBook(["worker 0"], every_s=1.0)
    assert book.decide(0, 5.0) == book.decide(0, 6.0) == (False, 10)
    first = book.decide(10, 6.0)
    # The other worker comes two intervals later.
    assert book.decide(10, 8.0) == first
    second = book.decide(first.next_step, 8.5)
    assert second.keep
    assert book.decide(first.next_step, 100.0) == second


def test_checkpoints_may_come_by_steps() -> None:
    book = CheckpointBook(["worker 0"], every_s=30.0, every_steps=7, begun_after=100)
    assert [book.decide(step, 0.0) for step in (100, 107, 114)] == [(False, 107), (True, 114), (True, 121)]


def test_the_last_step_is_kept() -> None:
    book = CheckpointBook(["worker 0"], every_s=1e4)
    assert book.decide(3, 0.0, is_last=True).keep


def test_a_checkpoint_is_complete_with_the_part_of_every_member_that_has_one() -> None:
    book = CheckpointBook(["server 0", "server 1", "worker 0"], every_s=1.0)
    assert book.stored("server 1", 8, FILE) is None
    assert book.stored("server 0", 8, FILE) is None
    assert book.stored("server 0", 9, FILE) is None
    assert book.stored("worker 0", 8, FILE) == {"server 0": FILE, "server 1": FILE, "worker 0": FILE}
    # A member that was not answered says so again: what is complete is so once, and is awaited no more.
    assert [book.stored(member, 8, FILE) for member in ("server 0", "server 1", "worker 0")] == [None] * 3
    # Of a step that a member left out nothing is remembered once a later one is complete.
    assert book.stored("server 1", 7, FILE) is None
    assert book.stored("server 1", 9, FILE) is None
    assert book.stored("worker 0", 9, FILE) is not None


def test_a_step_of_which_parts_are_there_is_not_given_up_while_the_others_may_come() -> None:
    """A member with a slow disk stored its part two steps later, when the parts of others had been removed."""
    book = CheckpointBook(["worker 0", "worker 1"], every_s=1.0)
    book.stored("worker 0", 1, FILE)
    book.stored("worker 0", 2, FILE)
    book.left_out(2)
    assert book.give_up(3) == 1
    assert book.stored("worker 1", 1, FILE) == {"worker 0": FILE, "worker 1": FILE}
    assert book.give_up(3) == 3


def test_a_step_that_all_members_are_writing_yet_is_not_given_up() -> None:
    """Disks took longer than two intervals: each checkpoint was removed before anybody had stored a part of it."""
    book = CheckpointBook(["worker 0", "worker 1"], every_s=1.0, every_steps=10)
    for step in (10, 20, 30, 40):
        assert book.decide(step, 0.0).keep
        assert book.give_up(step) == 10
        if step > 10:
            book.left_out(step)
    assert book.stored("worker 0", 10, FILE) is None
    assert book.give_up(50) == 10
    assert book.stored("worker 1", 10, FILE) is not None
    assert book.give_up(50) == 50


def test_who_stores_a_later_part_writes_no_earlier_one() -> None:
    """Its words on what it left out may be lost."""
    book = CheckpointBook(["worker 0", "worker 1"], every_s=1.0, every_steps=10)
    for step in (10, 20):
        assert book.decide(step, 0.0).keep
    book.stored("worker 0", 20, FILE)
    assert book.give_up(20) == 20


def test_of_what_is_given_up_no_part_counts() -> None:
    book = CheckpointBook(["worker 0", "worker 1"], every_s=1.0)
    book.stored("worker 0", 2, FILE)
    book.left_out(2)
    assert book.stored("worker 0", 2, FILE) is None
    assert book.give_up(4) == 4
    for member in ("worker 0", "worker 1"):
        assert book.stored(member, 2, FILE) is None
        assert book.stored(member, 3, FILE) is None
    assert book.stored("worker 0", 4, FILE) is None
    assert book.stored("worker 1", 4, FILE) is not None


def test_a_member_without_a_part_is_refused() -> None:
    book = CheckpointBook(["server 0"], every_s=1.0)
    with pytest.raises(StaleError, match="worker 1 has stored a part of step 4: expected parts of server 0"):
        book.stored("worker 1", 4, FILE)
