"""Loops that go on at any place: what they draw and see is that of loops which were never broken off."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from taihu.torch.kept.loops import Loops, generators

EPOCHS, SAMPLES = 3, 5
T = TypeVar("T")


class BrokenOffError(Exception):
    pass


def drawing() -> Iterator[int]:
    """Batches that are drawn one by one, between the draws of whoever trains."""
    for _ in range(SAMPLES):
        yield int(torch.randint(1000, ()))


BATCHES = {
    "sequence": lambda: range(SAMPLES),
    "shuffled": lambda: DataLoader(range(SAMPLES), shuffle=True),
    "drawn": drawing,
}


def passed_by(loops: Loops, batches: Iterable[T], passed: Callable[[], None]) -> Iterator[T]:
    """A loop as a script has it: whoever breaks it off is behind a pass."""
    try:
        for batch in loops.batches(batches):
            yield batch
            loops.passed()
            passed()
    finally:
        loops.ended()


def train(seen: list[Any], loops: Loops, kind: str, passed: Callable[[], None] = lambda: None) -> None:
    """Two loops an epoch, with draws from all generators before, in and behind them."""
    for epoch in loops.epochs(EPOCHS):
        order = torch.randperm(SAMPLES).tolist()
        for batch in passed_by(loops, BATCHES[kind](), passed):
            drawn = random.random(), float(np.random.rand()), float(torch.rand(()))
            seen += [(epoch, order, int(batch), *drawn)]
        torch.rand(3)
        for batch in passed_by(loops, BATCHES[kind](), passed):
            seen += [(epoch, int(batch), float(torch.rand(())))]
        seen.append((epoch, "end", float(torch.rand(()))))


def kept(loops: Loops) -> dict[str, Any]:
    return copy.deepcopy(
        {"goes_on": loops.place, "at_epoch": loops.at_epoch, "at_loop": loops.at_loop, "now": generators()}
    )


@pytest.mark.parametrize("kind", BATCHES)
@given(broken_after=st.integers(1, 2 * EPOCHS * SAMPLES))
def test_a_script_that_is_started_again_sees_and_draws_the_same(kind: str, broken_after: int) -> None:
    def seeded() -> None:
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)

    whole: list[Any] = []
    seeded()
    train(whole, Loops(), kind)

    first: list[Any] = []
    state: dict[str, Any] = {}
    passes = 0

    def passed() -> None:
        nonlocal passes, state
        passes += 1
        if passes == broken_after:
            state = {**kept(loops), "seen": len(first)}
            raise BrokenOffError

    loops = Loops()
    seeded()
    with pytest.raises(BrokenOffError):
        train(first, loops, kind, passed)
    second = first[: state.pop("seen")]
    random.seed(77)
    torch.manual_seed(78)
    again = Loops()
    again.goes_on, again.at_epoch = state["goes_on"], state["at_epoch"]
    again.at_loop, again.now = state["at_loop"], state["now"]
    train(second, again, kind)
    # What stands between the last batch of a loop and the next loop is done again where it was broken off there.
    assert second == whole


def test_a_loop_that_is_left_early_counts_as_one() -> None:
    places = []
    loops = Loops()

    def passed() -> None:
        places.append(loops.place)

    for _ in loops.epochs(2):
        for batch in passed_by(loops, range(4), passed):
            if batch == 2:
                break
        for _ in passed_by(loops, range(1), passed):
            pass
    assert [(each.epoch, each.loop, each.batches) for each in places] == [
        (0, 0, 1),
        (0, 0, 2),
        (0, 1, 1),
        (1, 0, 1),
        (1, 0, 2),
        (1, 1, 1),
    ]
