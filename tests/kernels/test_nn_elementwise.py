from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.nn.elementwise import (
    add,
    add_bias,
    add_rectified,
    column_sums,
    dropout,
    dropout_key,
    grains,
    relu,
    relu_gradient,
)

_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
_DTYPES = st.sampled_from([np.float32, np.float64])
_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def _values(generator: np.random.Generator, size: int, dtype: Any) -> Any:
    """Values of every magnitude, and special ones among them."""
    limits = np.finfo(dtype)
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, limits.max, limits.min, limits.tiny, -limits.smallest_subnormal]
    usual = generator.standard_normal(size) * 10.0 ** generator.integers(-40, 38, size)
    with np.errstate(under="ignore"):
        return np.where(generator.random(size) < 0.3, generator.choice(special, size), usual).astype(dtype)


@settings(deadline=None, max_examples=50)
@given(_DTYPES, st.integers(0, 70), st.integers(0, 2**32 - 1), st.booleans())
def test_relu_and_its_gradient(dtype: Any, size: int, seed: int, in_place: bool) -> None:
    generator = np.random.default_rng(seed)
    x, dy = (_values(generator, size, dtype) for _ in range(2))
    expected_y = [value if not value < 0 else 0 for value in x]
    expected_dx = [g if not value <= 0 else 0 for value, g in zip(x, dy, strict=True)]
    y = x if in_place else np.empty_like(x)
    dx = dy if in_place else np.empty_like(dy)
    half = grains(x) // 2
    for first, last in ((half, grains(x)), (0, half)):
        relu(x, y, first, last, 0)
        relu_gradient(y, dy, dx, first, last, 0)
    assert np.array_equal(y, expected_y, equal_nan=True)
    assert np.array_equal(dx, expected_dx, equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 1000, 32768, 32769, 100_000])
def test_sums_of_branches(dtype: Any, size: int) -> None:
    a, b = np.random.default_rng(size).standard_normal((2, size)).astype(dtype)
    a[size // 2 : size // 2 + 1] = np.nan
    for kernel, expected in ((add, a + b), (add_rectified, np.maximum(a + b, 0))):
        y = np.full_like(a, 7)
        parts = -(-size // 32768)
        assert parts == grains(y)
        for part in reversed(range(parts)):
            kernel(a, b, y, part, part + 1, 0)
        assert np.array_equal(y, expected, equal_nan=True)


@settings(deadline=None, max_examples=50)
@given(_DTYPES, st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_add_bias_and_column_sums(dtype: Any, rows: int, columns: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, bias = generator.standard_normal((rows, columns)).astype(dtype), generator.random(columns).astype(dtype)
    sums = np.full(columns, np.nan)
    column_sums(x, sums)
    np.testing.assert_allclose(sums, [sum(float(v) for v in x[:, c]) for c in range(columns)], rtol=1e-12, atol=1e-12)
    y = x.copy()
    add_bias(y, bias)
    assert np.array_equal(y, x + bias)


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % _WORD
    return value ^ (value >> 31)


def _kept(rate: float, identity: tuple[int, int, int], sample: int, element: int) -> bool:
    """The definition, in Python's integers; the identity is (seed, step, layer)."""
    seed, step, layer = identity
    key = _mix((_mix((_mix((seed + _GOLDEN) % _WORD) + step) % _WORD) + layer) % _WORD)
    state = _mix((key + _GOLDEN * (sample + 1)) % _WORD)
    return _mix((state + _GOLDEN * (element + 1)) % _WORD) >= int(rate * 2.0**64)


@settings(deadline=None, max_examples=60)
@given(_DTYPES, st.floats(0, 0.99), st.tuples(_INT64, _INT64, _INT64), st.integers(0, 1 << 40), st.integers(0, 9000))
def test_dropout_follows_its_definition(
    dtype: Any, rate: float, identity: tuple[int, int, int], first: int, first_element: int
) -> None:
    x = np.random.default_rng(0).standard_normal((3, 7)).astype(dtype)
    y = np.full_like(x, np.nan)
    samples = np.array([first, first + 5, first + 1])
    dropout(x, y, rate, dropout_key(*identity), samples, first_element)
    scale = dtype(1 / (1 - rate))
    for b, e in np.ndindex(x.shape):
        assert y[b, e] == (x[b, e] * scale if _kept(rate, identity, int(samples[b]), first_element + e) else 0)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_dropout_zeroes_at_its_rate_and_keeps_the_mean(rate: float) -> None:
    x = np.ones((100, 1000), np.float32)
    y = np.empty_like(x)
    dropout(x, y, rate, dropout_key(1, 2, 3), np.arange(100), 0)
    deviation = np.sqrt(rate * (1 - rate) / x.size)
    assert abs(np.mean(y == 0) - rate) <= 5 * deviation
    assert abs(y.mean(dtype=np.float64) - 1) <= 5 * deviation / (1 - rate) + 1e-6


def test_dropout_masks_differ_between_seeds_steps_layers_and_samples() -> None:
    x = np.ones((2, 64), np.float32)
    keys = [dropout_key(*numbers) for numbers in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 2))]
    masks = []
    for key in keys:
        y = np.empty_like(x)
        dropout(x, y, 0.5, key, np.arange(2), 0)
        masks += [row.tobytes() for row in y]
    assert len(set(masks)) == len(masks)
