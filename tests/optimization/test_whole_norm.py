"""The norm of a whole gradient: exact sums of squares, however the gradient is cut and whoever has its parts."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.optimization import WholeNorm
from taihu.kernels.clip import add_squares

_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
_EXAMPLES = settings(deadline=None, max_examples=100)


@_EXAMPLES
@given(st.lists(_FLOATS, max_size=40), st.integers(-40, 40))
def test_squares_are_counted_in_units(values: list[float], exponent: int) -> None:
    unit, lanes = math.ldexp(1.0, exponent), np.zeros(5, np.int64)
    add_squares(np.array(values, np.float32), unit, lanes)
    squares = [Fraction(value) ** 2 / Fraction(unit) for value in values]
    counted = [round(each) for each in squares if each < 2**120]
    assert sum(int(lane) << (30 * k) for k, lane in enumerate(lanes[:4])) == sum(counted)
    assert lanes[4] == len(squares) - len(counted)


@_EXAMPLES
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=4),
    st.floats(1e-3, 1e3),
    st.integers(1, 5),
)
def test_the_factor_is_that_of_numpy_and_the_same_however_it_is_cut(
    values: list[float], cuts: list[int], largest: float, workers: int
) -> None:
    gradient = np.array(values, np.float32)
    whole = WholeNorm(largest, 1 / workers)
    whole.add(gradient)
    parts = [WholeNorm(largest, 1 / workers) for _ in range(workers)]
    bounds = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    for place, (start, stop) in enumerate(pairwise(bounds)):
        parts[-1 - place % workers].add(gradient[start:stop])
    # In fp32, as the workers do.
    total = np.zeros_like(whole.pieces())
    for part in parts:
        total += part.pieces()
    for part in parts:
        part.replace(total)
    assert {part.factor for part in parts} == {whole.factor}
    norm = float(np.linalg.norm(gradient.astype(np.float64)))
    expected = min(1.0, largest * workers / norm) if norm else 1.0
    assert whole.factor == pytest.approx(expected, rel=1e-9)


def test_many_workers_with_full_lanes_are_added_up_exactly() -> None:
    parts = [WholeNorm(1.0, 1.0) for _ in range(300)]
    for rank, part in enumerate(parts):
        part.add(np.full(1000, 1.0 + rank / 1024, np.float32))
    total = np.zeros_like(parts[0].pieces())
    for part in parts:
        total += part.pieces()
    parts[0].replace(total)
    expected = math.sqrt(sum(1000 * Fraction(1024 + rank, 1024) ** 2 for rank in range(300)))
    assert parts[0].norm == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_beyond_all_measure_is_scaled_to_nothing(value: float) -> None:
    norm = WholeNorm(1.0, 1.0)
    norm.add(np.array([1.0, value], np.float32))
    assert norm.norm == math.inf
    assert norm.factor == 0.0
