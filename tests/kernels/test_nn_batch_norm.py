from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.nn.batch_norm import (
    blocked_column_sums,
    channel_moments,
    fold,
    gradient_moments,
    normalize_gradient,
    row_blocks,
    scale_and_shift,
)

_DTYPES = st.sampled_from([np.float32, np.float64])
# Some thousand columns make blocks of few rows.
_COLUMNS = st.one_of(st.integers(1, 70), st.integers(4000, 9000))


def _in_parts(kernel: Any, blocks: int, *arguments: Any) -> None:
    """As a team of two calls it."""
    half = blocks // 2
    kernel(*arguments, half, blocks, 1)
    kernel(*arguments, 0, half, 0)


@settings(deadline=None, max_examples=50)
@given(_DTYPES, st.integers(1, 40), _COLUMNS, st.booleans(), st.integers(0, 9))
def test_moments_are_float64_sums(dtype: Any, rows: int, channels: int, rectify: bool, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, dy = (generator.standard_normal((rows, channels)).astype(dtype) for _ in range(2))
    mean, scale, shift = (generator.standard_normal(channels).astype(dtype) for _ in range(3))
    affine = np.stack((scale, shift))
    blocks = row_blocks(x)
    totals, gradient_totals, sums = (np.full((blocks, kinds, channels), np.nan) for kinds in (2, 2, 1))
    _in_parts(channel_moments, blocks, x, totals)
    _in_parts(gradient_moments, blocks, x, dy, mean, affine, gradient_totals, rectify)
    _in_parts(blocked_column_sums, blocks, x, sums)
    for total in (totals, gradient_totals, sums):
        fold(total)
    wide, centred = x.astype(np.float64), (x - mean).astype(np.float64)
    seen = np.where(rectify & (wide * scale + shift <= 0), 0, dy.astype(np.float64))
    exact = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    exact(totals[0, 0], wide.sum(0))
    exact(totals[0, 1], (wide**2).sum(0))
    exact(sums[0, 0], wide.sum(0))
    exact(gradient_totals[0, 0], seen.sum(0))
    np.testing.assert_allclose(gradient_totals[0, 1], (seen * centred).sum(0), rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=50)
@given(_DTYPES, st.integers(1, 40), _COLUMNS, st.booleans(), st.integers(0, 9))
def test_affine_maps(dtype: Any, rows: int, channels: int, rectify: bool, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, dy = (generator.standard_normal((rows, channels)).astype(dtype) for _ in range(2))
    factors = generator.standard_normal((3, channels)).astype(dtype)
    affine = generator.standard_normal((2, channels)).astype(dtype)
    y, dx = np.full_like(x, np.nan), np.full_like(x, np.nan)
    blocks = row_blocks(x)
    _in_parts(scale_and_shift, blocks, x, affine, y, rectify)
    _in_parts(normalize_gradient, blocks, x, dy, factors, affine, dx, rectify)
    expected_y = x.astype(np.float64) * affine[0] + affine[1]
    seen = np.where(expected_y <= 0, 0, dy) if rectify else dy
    if rectify:
        expected_y = np.maximum(expected_y, 0)
    np.testing.assert_allclose(y, expected_y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, seen * factors[0] + x * factors[1] + factors[2], rtol=1e-5, atol=1e-5)


def test_a_rectified_output_and_its_gradient_agree_to_the_bit() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1000, 37), dtype=np.float32)
    # Outputs of about one rounding error, of both signs.
    scale = generator.standard_normal(37, dtype=np.float32)
    x[0] = -1 / scale
    affine = np.stack((scale, np.ones_like(scale)))
    y, dx, ones = np.empty_like(x), np.empty_like(x), np.ones_like(x)
    factors = np.zeros((3, 37), np.float32)
    factors[0] = 1
    scale_and_shift(x, affine, y, True, 0, row_blocks(x), 0)
    normalize_gradient(x, ones, factors, affine, dx, True, 0, row_blocks(x), 0)
    assert np.array_equal(dx, y > 0)


@pytest.mark.parametrize("channels", [16, 37])
def test_an_output_of_exactly_zero_has_no_gradient(channels: int) -> None:
    """A rectifier's gradient at 0 is 0: of whole vectors of channels, and of those behind them."""
    x = np.random.default_rng(0).standard_normal((9, channels), dtype=np.float32)
    affine, ones = np.zeros((2, channels), np.float32), np.ones_like(x)
    factors = np.zeros((3, channels), np.float32)
    factors[0] = 1
    dx, totals = np.full_like(x, np.nan), np.full((row_blocks(x), 2, channels), np.nan)
    normalize_gradient(x, ones, factors, affine, dx, True, 0, row_blocks(x), 0)
    gradient_moments(x, ones, np.zeros(channels, np.float32), affine, totals, True, 0, row_blocks(x), 0)
    assert not dx.any()
    assert not totals.any()


def test_nan_stays_nan_where_it_is_rectified() -> None:
    x = np.full((3, 17), np.nan, np.float32)
    affine, y = np.ones((2, 17), np.float32), np.zeros_like(x)
    scale_and_shift(x, affine, y, True, 0, 1, 0)
    assert np.isnan(y).all()
