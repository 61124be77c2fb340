import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.nn.pooling import avg_pool, avg_pool_gradient, max_pool, max_pool_gradient
from taihu.kernels.nn.window import Window

Case = tuple[tuple[int, int, int, int], tuple[int, int], Window]
Position = tuple[tuple[int, int, int, int], list[tuple[int, int]]]


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    """A shape, the output's height and width, and windows, none of which lies outside of the image."""
    size, stride = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    padding = draw(st.integers(0, size - 1))
    batch, channels = draw(st.integers(1, 3)), draw(st.integers(1, 35))
    height, width = (draw(st.integers(max(1, size - 2 * padding), 9)) for _ in range(2))
    output = [draw(st.integers(1, math.ceil((side + padding) / stride))) for side in (height, width)]
    return (batch, height, width, channels), (output[0], output[1]), Window(size, stride, padding)


def _windows(case: Case) -> Iterator[Position]:
    """Every output position with the input pixels of its window, in order."""
    (batch, height, width, channels), (out_height, out_width), (size, stride, padding) = case
    for b, oh, ow, c in np.ndindex(batch, out_height, out_width, channels):
        rows = [row for row in range(oh * stride - padding, oh * stride - padding + size) if 0 <= row < height]
        lines = [line for line in range(ow * stride - padding, ow * stride - padding + size) if 0 <= line < width]
        yield (b, oh, ow, c), [(row, line) for row in rows for line in lines]


def _in_parts(kernel: Any, *arguments: Any) -> None:
    """As a team of two calls it; the images come first among the arguments."""
    half = len(arguments[0]) // 2
    kernel(*arguments, half, len(arguments[0]), 1)
    kernel(*arguments, 0, half, 0)


def _output_shape(case: Case) -> tuple[int, int, int, int]:
    shape, (height, width), _ = case
    return shape[0], height, width, shape[3]


def _integers(shape: tuple[int, ...], seed: int, dtype: Any) -> Any:
    # Few values, so that maxima are often equal and sums are exact.
    return np.random.default_rng(seed).integers(-4, 4, shape).astype(dtype)


@settings(deadline=None, max_examples=50)
@given(_cases(), st.sampled_from([np.float32, np.float64]), st.integers(0, 9))
def test_max_pool_and_its_gradient(case: Case, dtype: Any, seed: int) -> None:
    x, dy = _integers(case[0], seed, dtype), _integers(_output_shape(case), seed + 1, dtype)
    y, chosen, dx = np.empty_like(dy), np.empty(dy.shape, np.int32), np.full_like(x, np.nan)
    expected_y, expected_dx = np.empty_like(dy), np.zeros_like(x)
    for (b, oh, ow, c), pixels in _windows(case):
        first = max(pixels, key=lambda pixel: x[b, pixel[0], pixel[1], c])
        expected_y[b, oh, ow, c] = x[b, first[0], first[1], c]
        expected_dx[b, first[0], first[1], c] += dy[b, oh, ow, c]
    _in_parts(max_pool, x, y, chosen, case[2])
    _in_parts(max_pool_gradient, dy, chosen, dx, case[2])
    assert np.array_equal(y, expected_y)
    assert np.array_equal(dx, expected_dx)


@settings(deadline=None, max_examples=50)
@given(_cases(), st.sampled_from([np.float32, np.float64]), st.integers(0, 9))
def test_avg_pool_and_its_gradient(case: Case, dtype: Any, seed: int) -> None:
    x, dy = _integers(case[0], seed, dtype), _integers(_output_shape(case), seed + 1, dtype)
    y, dx = np.empty_like(dy), np.full_like(x, np.nan)
    expected_y, expected_dx = np.empty(dy.shape), np.zeros(x.shape)
    for (b, oh, ow, c), pixels in _windows(case):
        expected_y[b, oh, ow, c] = sum(x[b, row, line, c] for row, line in pixels) / len(pixels)
        for row, line in pixels:
            expected_dx[b, row, line, c] += dy[b, oh, ow, c] / len(pixels)
    _in_parts(avg_pool, x, y, case[2])
    _in_parts(avg_pool_gradient, dy, dx, case[2])
    np.testing.assert_allclose(y, expected_y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-5, atol=1e-5)


def test_max_pool_does_not_hide_a_nan() -> None:
    for where in range(4):
        x = np.repeat(np.arange(4, dtype=np.float32), 33).reshape(1, 2, 2, 33)
        x[0, where // 2, where % 2] = np.nan
        y, chosen = np.empty((1, 1, 1, 33), np.float32), np.empty((1, 1, 1, 33), np.int32)
        max_pool(x, y, chosen, Window(2, 2, 0), 0, 1, 0)
        assert np.isnan(y).all()
        assert (chosen == where).all()
