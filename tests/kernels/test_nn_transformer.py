"""Kernels of transformers against NumPy, SciPy's formulas and brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.nn.attention import causal_softmax, causal_softmax_gradient
from taihu.kernels.nn.embedding import add_rows, first_stranger, take_rows
from taihu.kernels.nn.gelu import gelu, gelu_with_slope, scaled, unary_grains
from taihu.kernels.nn.layer_norm import layer_norm, layer_norm_gradient, norm_blocks
from taihu.kernels.nn.loss import surprise

_EXAMPLES = settings(deadline=None, max_examples=25)
_SEEDS = st.integers(0, 2**32 - 1)
_KINDS = st.sampled_from([np.float32, np.float64])
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _tolerance(kind: Any) -> Any:
    return {"rtol": 2e-5, "atol": 2e-5} if kind is np.float32 else {"rtol": 1e-11, "atol": 1e-11}


@_EXAMPLES
@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 40), st.integers(1, 7), _SEEDS)
def test_rows_by_number_and_their_sums(count: int, columns: int, tokens: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, count, tokens)
    given_as = numbers + rng.uniform(-0.2, 0.2, tokens)
    table, dy = rng.standard_normal((count, columns)), rng.standard_normal((tokens, columns))
    y, sums = np.empty((tokens, columns)), table.copy()
    take_rows(given_as, table, y, 0, tokens, 0)
    assert np.array_equal(y, table[numbers])
    blocks = -(-columns // width)
    cut = int(rng.integers(0, blocks + 1))
    add_rows(given_as, dy, sums, width, 0, cut, 0)
    add_rows(given_as, dy, sums, width, cut, blocks, 1)
    expected = table.copy()
    np.add.at(expected, numbers, dy)
    assert np.array_equal(sums, expected)


@_EXAMPLES
@given(st.lists(st.sampled_from([0.0, 1.0, 3.0, 4.0, -1.0, 2.5, 0.2, math.nan, math.inf, 1e300]), max_size=6))
def test_the_first_that_is_no_number_of_a_row(tokens: list[float]) -> None:
    wrong = [place for place, each in enumerate(tokens) if each not in {0.0, 1.0, 3.0, 0.2}]
    assert first_stranger(np.array(tokens), 4) == (wrong[0] if wrong else -1)


@_EXAMPLES
@given(st.integers(1, 150), st.integers(1, 40), _KINDS, _SEEDS)
def test_layer_norm(rows: int, columns: int, kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, dy = (rng.normal(2, 1, (rows, columns)).astype(kind) for _ in range(2))
    scale, shift = (rng.standard_normal(columns).astype(kind) for _ in range(2))
    epsilon, blocks = 1e-3, norm_blocks(rows)
    y, dx, moments = np.empty_like(x), np.empty_like(x), np.empty((rows, 2), kind)
    totals = np.empty((blocks, 2, columns))
    cut = int(rng.integers(0, blocks + 1))
    for first, last in ((0, cut), (cut, blocks)):
        layer_norm(x, scale, shift, epsilon, y, moments, first, last, 0)
        layer_norm_gradient(x, dy, scale, moments, dx, totals, first, last, 0)
    wide, slope = x.astype(np.float64), dy.astype(np.float64)
    inverse = 1 / np.sqrt(wide.var(axis=1, keepdims=True) + epsilon)
    normal = (wide - wide.mean(axis=1, keepdims=True)) * inverse
    weighted = slope * scale
    expected = weighted - weighted.mean(axis=1, keepdims=True)
    expected = (expected - normal * (weighted * normal).mean(axis=1, keepdims=True)) * inverse
    np.testing.assert_allclose(y, normal * scale + shift, **_tolerance(kind))
    bound = 1 + np.abs(expected).max()
    np.testing.assert_allclose(dx / bound, expected / bound, **_tolerance(kind))
    np.testing.assert_allclose(totals.sum(axis=0)[0] / rows, (slope * normal).mean(axis=0), **_tolerance(kind))
    np.testing.assert_allclose(totals.sum(axis=0)[1], slope.sum(axis=0), rtol=1e-9, atol=1e-9)


@_EXAMPLES
@given(st.sampled_from([1, 7, 8192, 9000]), st.booleans(), _KINDS, _SEEDS)
def test_gelu(size: int, approximate: bool, kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (3 * rng.standard_normal(size)).astype(kind)
    y, alone, slope = np.empty_like(x), x.copy(), np.empty_like(x)
    grains = unary_grains(x)
    cut = int(rng.integers(0, grains + 1))
    for first, last in ((0, cut), (cut, grains)):
        gelu_with_slope(x, y, slope, approximate, first, last, 0)
        gelu(alone, alone, approximate, first, last, 0)
    wide = x.astype(np.float64)
    expected, expected_slope = _gelu(wide, approximate=approximate)
    np.testing.assert_allclose(y, expected, **_tolerance(kind))
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-9, atol=2e-5 if kind is np.float32 else 1e-9)
    assert np.array_equal(alone, y)
    dx = y.copy()
    scaled(dx, slope, dx, 0, grains, 0)
    assert np.array_equal(dx, y * slope)


def _gelu(x: NDArray[np.float64], *, approximate: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not approximate:
        share = (1 + _erf(x / math.sqrt(2))) / 2
        return x * share, share + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    step = 1e-5

    def value(at: NDArray[np.float64]) -> NDArray[np.float64]:
        made: NDArray[np.float64] = at / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (at + 0.044715 * at**3)))
        return made

    # Five points: to 1e-12.
    near, far = value(x + step) - value(x - step), value(x + 2 * step) - value(x - 2 * step)
    return value(x), np.round((8 * near - far) / (12 * step), 10)


@_EXAMPLES
@given(st.integers(1, 4), st.integers(1, 12), _KINDS, _SEEDS)
def test_causal_softmax(matrices: int, time: int, kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, slopes = (rng.normal(0, 30, (matrices, time, time)).astype(kind) for _ in range(2))
    weights, scale = scores.copy(), 0.3
    causal_softmax(weights, scale)
    wide = np.where(np.tril(np.ones((time, time), bool)), scores.astype(np.float64) * scale, -np.inf)
    expected = np.exp(wide - wide.max(axis=-1, keepdims=True))
    expected /= expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, **_tolerance(kind))
    dscores = slopes.copy()
    causal_softmax_gradient(weights, dscores, scale)
    along = (expected * slopes).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(dscores / 100, expected * (slopes - along) * scale / 100, **_tolerance(kind))


@_EXAMPLES
@given(st.integers(1, 9), st.integers(1, 12), _KINDS, _SEEDS)
def test_surprise(rows: int, classes: int, kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(0, 200, (rows, classes)).astype(kind), rng.integers(0, classes, rows)
    wide = logits.astype(np.float64)
    chances = wide - np.logaddexp.reduce(wide, axis=1, keepdims=True)
    expected = -chances[np.arange(rows), labels].sum()
    np.testing.assert_allclose(
        surprise(logits, labels), expected, rtol=1e-5 if kind is np.float32 else 1e-12, atol=1e-6
    )
