"""Batches of loops that go back: passes that are taken again see and draw what they did at first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import MemberLostError, RecoveringError, RunError
from taihu.torch.kept.drawn import DrawnBatches
from taihu.torch.steps.attempt import Attempt
from taihu.torch.steps.roll_call import DisagreementError

PASSES = 12


def drawing() -> Iterator[int]:
    for number in range(PASSES):
        yield 1000 * number + int(torch.randint(1000, ()))


def seen_by(back: dict[int, int], held_every: int) -> list[tuple[int, int]]:
    """Batches and draws of each pass at last, where `back` names passes behind which so many come again."""
    torch.manual_seed(1)
    drawn = DrawnBatches(drawing(), 0, keeps=True)
    seen: list[tuple[int, int]] = []
    drawn.held(0)
    while True:
        try:
            batch = drawn.draw()
        except StopIteration:
            return seen
        seen.append((batch, int(torch.randint(1000, ()))))
        number = len(seen) - 1
        if number in back:
            to = max(number - back.pop(number), drawn.first)
            assert drawn.go_back(to)
            del seen[to:]
        elif len(seen) % held_every == 0:
            drawn.held(len(seen))


@given(
    st.dictionaries(st.integers(0, PASSES - 1), st.integers(0, PASSES), max_size=4),
    st.integers(1, 4),
)
def test_passes_that_come_again_draw_what_they_did(back: dict[int, int], held_every: int) -> None:
    assert seen_by(dict(back), held_every) == seen_by({}, held_every)


def test_the_last_two_held_places_can_be_come_back_to_and_none_before() -> None:
    drawn = DrawnBatches(iter(range(PASSES)), 0, keeps=True)
    for number in range(8):
        assert drawn.draw() == number
        drawn.held(number + 1)
    assert not drawn.go_back(5)
    assert drawn.go_back(6)
    assert [drawn.draw() for _ in range(3)] == [6, 7, 8]
    assert not DrawnBatches(iter(()), 3, keeps=True).go_back(4)


def test_a_pass_is_given_up_for_the_loss_of_another_worker_alone() -> None:
    attempt = Attempt(0)
    lost = MemberLostError("worker 1 at 127.0.0.1:1 was lost")
    with pytest.raises(MemberLostError):
        attempt.lose(lost)  # no loop would take it again
    attempt.can_go_back = True
    for other in (DisagreementError("worker 1 is in backward 3"), RunError("worker 0: no"), RunError("a gradient")):
        with pytest.raises(type(other)), attempt.losing():
            raise other
    assert not attempt.is_given_up
    with attempt.losing():
        raise lost
    assert attempt.is_given_up
    attempt.can_go_back = False
    with pytest.raises(RecoveringError, match="worker 1"):
        _ = attempt.is_given_up
