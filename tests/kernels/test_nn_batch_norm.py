from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.nn.batch_norm import channel_moments, gradient_moments, normalize_gradient, scale_and_shift

_DTYPES = st.sampled_from([np.float32, np.float64])


@settings(deadline=None, max_examples=50)
@given(_DTYPES, st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_moments_are_float64_sums(dtype: Any, rows: int, channels: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, dy = (generator.standard_normal((rows, channels)).astype(dtype) for _ in range(2))
    mean = generator.standard_normal(channels).astype(dtype)
    sums, squares, dy_sums, products = (np.full(channels, np.nan) for _ in range(4))
    channel_moments(x, sums, squares)
    gradient_moments(x, dy, mean, dy_sums, products)
    wide_x, wide_dy, centred = x.astype(np.float64), dy.astype(np.float64), (x - mean).astype(np.float64)
    for c in range(channels):
        np.testing.assert_allclose(sums[c], sum(wide_x[:, c]), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(squares[c], sum(wide_x[:, c] ** 2), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(dy_sums[c], sum(wide_dy[:, c]), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(products[c], sum(wide_dy[:, c] * centred[:, c]), rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=50)
@given(_DTYPES, st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_affine_maps(dtype: Any, rows: int, channels: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, dy = (generator.standard_normal((rows, channels)).astype(dtype) for _ in range(2))
    factors = generator.standard_normal((3, channels)).astype(dtype)
    y, dx = np.full_like(x, np.nan), np.full_like(x, np.nan)
    scale_and_shift(x, factors[0], factors[1], y)
    normalize_gradient(x, dy, factors, dx)
    np.testing.assert_allclose(y, x * factors[0] + factors[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, dy * factors[0] + x * factors[1] + factors[2], rtol=1e-5, atol=1e-5)
