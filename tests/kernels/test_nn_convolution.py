from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.nn.convolution import col2im, im2col
from kernels.nn.window import Window

Case = tuple[tuple[int, int, int, int], Window]


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    size, stride, padding = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(0, 3))
    least = max(1, size - 2 * padding)
    batch, channels = draw(st.integers(1, 3)), draw(st.integers(1, 18))
    height, width = draw(st.integers(least, least + 7)), draw(st.integers(least, least + 7))
    return (batch, height, width, channels), Window(size, stride, padding)


def _sources(shape: tuple[int, int, int, int], window: Window) -> tuple[NDArray[np.int64], int]:
    """For every entry of the column matrix the flat index of its pixel, -1 for padding; and the number of rows."""
    batch, height, width, channels = shape
    size, stride, padding = window
    out_height, out_width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
    indices = []
    for b in range(batch):
        for oh in range(out_height):
            for ow in range(out_width):
                for kh in range(size):
                    for kw in range(size):
                        ih, iw = oh * stride - padding + kh, ow * stride - padding + kw
                        inside = 0 <= ih < height and 0 <= iw < width
                        start = ((b * height + ih) * width + iw) * channels
                        indices += [start + c if inside else -1 for c in range(channels)]
    rows = batch * out_height * out_width
    return np.array(indices).reshape(rows, -1), rows


@settings(deadline=None, max_examples=60)
@given(_cases(), st.sampled_from([np.float32, np.float64]), st.integers(0, 9))
def test_im2col_copies_every_window(case: Case, dtype: Any, seed: int) -> None:
    shape, window = case
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    sources, _ = _sources(shape, window)
    columns = np.full(sources.shape, np.nan, dtype)
    im2col(x, columns, window)
    assert np.array_equal(columns, np.where(sources < 0, 0, x.reshape(-1)[sources]))


@settings(deadline=None, max_examples=60)
@given(_cases(), st.sampled_from([np.float32, np.float64]), st.integers(0, 9))
def test_col2im_sums_every_copy_of_a_pixel(case: Case, dtype: Any, seed: int) -> None:
    shape, window = case
    sources, _ = _sources(shape, window)
    # Small integers: sums are exact, so that the order of the additions does not matter.
    columns = np.random.default_rng(seed).integers(-9, 9, sources.shape).astype(dtype)
    expected = np.zeros(np.prod(shape), dtype)
    np.add.at(expected, sources[sources >= 0], columns[sources >= 0])
    x = np.full(shape, np.nan, dtype)
    col2im(columns, x, window)
    assert np.array_equal(x.reshape(-1), expected)
