"""Hypothesis strategies that several test folders use."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

__all__ = ["weighted"]

T = TypeVar("T")


def weighted(*choices: tuple[int, SearchStrategy[T]]) -> SearchStrategy[T]:
    """One of the strategies, as often as its weight says; `one_of` counts a strategy that is repeated once."""
    repeated = [strategy for weight, strategy in choices for _ in range(weight)]
    return st.sampled_from(range(len(repeated))).flatmap(repeated.__getitem__)
