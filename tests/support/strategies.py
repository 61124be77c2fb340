"""Hypothesis strategies that several test folders use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

__all__ = ["CHARACTERS", "one_of_each", "weighted"]

T = TypeVar("T")
# All that UTF-8 encodes. Where UTF-8 is asked for by name, as `text()` does by itself, Hypothesis encodes each of a
# million characters in every process that finds no table of them on disk: for 3 s.
CHARACTERS = st.characters(exclude_categories=["Cs"])


def one_of_each(*choices: Sequence[Any]) -> SearchStrategy[tuple[Any, ...]]:
    """A tuple of one of each of the choices, all in one draw: a draw for each takes as many times as long."""
    combinations = math.prod(map(len, choices))
    assert combinations < 1 << 24, "larger numbers are not drawn evenly"

    def with_number(number: int) -> tuple[Any, ...]:
        chosen = []
        for choice in choices:
            number, place = divmod(number, len(choice))
            chosen.append(choice[place])
        return tuple(chosen)

    return st.integers(0, combinations - 1).map(with_number)


def weighted(*choices: tuple[int, SearchStrategy[T]]) -> SearchStrategy[T]:
    """One of the strategies, as often as its weight says; `one_of` counts a strategy that is repeated once."""
    repeated = [strategy for weight, strategy in choices for _ in range(weight)]
    return st.sampled_from(range(len(repeated))).flatmap(repeated.__getitem__)
