"""Clipping against NumPy in fp64, and its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.clip import clip_norm, clip_values

quick = settings(deadline=None, max_examples=60)
LENGTHS = st.integers(0, 600)


@quick
@given(LENGTHS, st.floats(0.01, 100), st.integers(0, 99))
def test_a_norm_that_is_too_large_becomes_the_largest(elements: int, largest: float, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)
    before, wide = values.copy(), values.astype(np.float64)
    norm = float(np.linalg.norm(wide))
    assert clip_norm(values, largest) == pytest.approx(norm, rel=1e-12)
    if norm <= largest:
        np.testing.assert_array_equal(values, before)
    else:
        np.testing.assert_allclose(values, wide * (largest / norm), rtol=1e-6)


@quick
@given(LENGTHS, st.floats(0.01, 2), st.sampled_from([1.0, 0.5, 1 / 3]), st.integers(0, 99))
def test_elements_end_at_the_largest(elements: int, largest: float, scale: float, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)
    out = np.empty_like(values)
    clip_values(values, scale, largest, out)
    limit = np.float32(largest)
    np.testing.assert_array_equal(out, np.clip(values * np.float32(scale), -limit, limit))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_left_for_others_to_see(bad: float) -> None:
    values = np.array([3.0, bad, 4.0], dtype=np.float32)
    before = values.copy()
    clip_norm(values, 1.0)
    np.testing.assert_array_equal(values, before)
    if np.isnan(bad):
        out = np.empty_like(values)
        clip_values(values, 1.0, 2.0, out)
        np.testing.assert_array_equal(out, np.array([2.0, np.nan, 2.0], dtype=np.float32))
