"""im2col, col2im and pooling on the processor: loops over windows as the oracle, and equal ledgers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.nn.window import Window
from taihu.kernels.sw26010.errors import BlockingError
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.pieces import col2im, im2col, pool, pool_gradient
from taihu.kernels.sw26010.windows import WindowPlan, WindowTask, plan_windows

Images = tuple[int, int, int, int]


class _Case:
    """Images of small integers, so that sums are exact, and all their windows."""

    def __init__(self, images: Images, window: Window, core_groups: int) -> None:
        self.images, self.window, self.core_groups = images, window, core_groups
        size, stride, padding = window
        self.positions = tuple((side + 2 * padding - size) // stride + 1 for side in images[1:3])
        rng = np.random.default_rng(0)
        self.x = rng.integers(-4, 5, images).astype(np.float32)
        self.dy = rng.integers(-4, 5, (images[0], *self.positions, images[3])).astype(np.float32)

    def pixels(self, row: int, column: int) -> list[tuple[int, int, int, int]]:
        """(kh, kw, line, pixel) of a window inside of the image."""
        size, stride, padding = self.window
        places = [
            (kh, kw, row * stride - padding + kh, column * stride - padding + kw)
            for kh in range(size)
            for kw in range(size)
        ]
        return [p for p in places if 0 <= p[2] < self.images[1] and 0 <= p[3] < self.images[2]]

    def cost(self, task: WindowTask) -> Ledger:
        height, width = self.positions
        return plan_windows(task, self.images, (height, width), self.window, 4, self.core_groups).cost()


@st.composite
def _cases(draw: st.DrawFn) -> _Case:
    size, stride = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    padding = draw(st.integers(0, size - 1))
    least = max(1, size - 2 * padding)
    height, width = draw(st.integers(least, 9)), draw(st.integers(least, 9))
    images = (draw(st.sampled_from([1, 3, 70])), height, width, draw(st.sampled_from([1, 5])))
    return _Case(images, Window(size, stride, padding), draw(st.integers(1, 4)))


@settings(deadline=None, max_examples=30)
@given(_cases())
def test_im2col_and_its_gradient(case: _Case) -> None:
    size = case.window.size
    expected = np.zeros((case.images[0], *case.positions, size, size, case.images[3]), np.float32)
    gradient = np.zeros_like(case.x)
    given_columns = np.random.default_rng(1).integers(-4, 5, expected.shape).astype(np.float32)
    for row, column in np.ndindex(*case.positions):
        for kh, kw, line, pixel in case.pixels(row, column):
            expected[:, row, column, kh, kw] = case.x[:, line, pixel]
            gradient[:, line, pixel] += given_columns[:, row, column, kh, kw]
    columns, dx = np.full_like(expected, np.nan), np.full_like(case.x, np.nan)
    assert im2col(case.x, columns, case.window, core_groups=case.core_groups) == case.cost("im2col")
    assert col2im(given_columns, dx, case.window, core_groups=case.core_groups) == case.cost("col2im")
    assert np.array_equal(columns, expected)
    assert np.array_equal(dx, gradient)


@settings(deadline=None, max_examples=30)
@given(_cases())
def test_pooling_and_its_gradient(case: _Case) -> None:
    largest, mean = np.empty_like(case.dy), np.empty_like(case.dy)
    of_largest, of_mean = np.zeros_like(case.x), np.zeros_like(case.x, np.float64)
    for row, column in np.ndindex(*case.positions):
        pixels = case.pixels(row, column)
        values = np.stack([case.x[:, line, pixel] for _, _, line, pixel in pixels])
        largest[:, row, column], mean[:, row, column] = values.max(axis=0), values.mean(axis=0)
        for index, (_, _, line, pixel) in enumerate(pixels):
            wins = values.argmax(axis=0) == index
            of_largest[:, line, pixel] += case.dy[:, row, column] * wins
            of_mean[:, line, pixel] += case.dy[:, row, column] / len(pixels)
    y, dx = np.full_like(case.dy, np.nan), np.full_like(case.x, np.nan)
    chosen, groups = np.empty(y.shape, np.int32), case.core_groups
    assert pool(case.x, y, chosen, case.window, core_groups=groups) == case.cost("max")
    assert np.array_equal(y, largest)
    assert pool_gradient(case.dy, chosen, dx, case.window, core_groups=groups) == case.cost("max gradient")
    assert np.array_equal(dx, of_largest)
    assert pool(case.x, y, None, case.window, core_groups=groups) == case.cost("average")
    np.testing.assert_allclose(y, mean, rtol=1e-5, atol=1e-6)
    assert pool_gradient(case.dy, None, dx, case.window, core_groups=groups) == case.cost("average gradient")
    np.testing.assert_allclose(dx, of_mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("images", [(2, 4, 300, 16), (1, 3, 4, 3000)])
def test_long_lines_and_many_channels_are_cut_into_pieces_that_fit(images: Images) -> None:
    case = _Case(images, Window(3, 1, 1), 2)
    plan = plan_windows("im2col", images, (images[1], images[2]), case.window)
    assert len(list(plan.pieces())) > 1
    assert (plan.depth == images[3]) == (images[3] == 16)
    columns = np.full((*images[:3], 3, 3, images[3]), np.nan, np.float32)
    assert im2col(case.x, columns, case.window, core_groups=2) == case.cost("im2col")
    assert np.array_equal(columns[:, :, :, 1, 1], case.x)
    dx = np.empty_like(case.x)
    assert col2im(columns, dx, case.window, core_groups=2) == case.cost("col2im")
    # A pixel inside of the image lies in nine windows.
    assert np.array_equal(dx[:, 1:-1, 1:-1], 9 * case.x[:, 1:-1, 1:-1])


def test_every_element_of_the_matrix_is_written_once() -> None:
    ledger = plan_windows("im2col", (4, 8, 8, 16), (8, 8), Window(3, 1, 1)).cost()
    written = 4 * 8 * 8 * 9 * 16 * 4
    # The lines of windows overlap: each one is read for three lines of positions, but two at the edges.
    assert ledger.dma_bytes == written + 4 * (3 * 8 - 2) * 8 * 16 * 4


def test_max_pooling_does_not_hide_a_nan() -> None:
    x = np.ones((1, 2, 2, 1), np.float32)
    x[0, 1, 0, 0] = np.nan
    y, chosen = np.empty((1, 1, 1, 1), np.float32), np.empty((1, 1, 1, 1), np.int32)
    pool(x, y, chosen, Window(2, 2, 0))
    assert np.isnan(y[0, 0, 0, 0])
    assert chosen[0, 0, 0, 0] == 2


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(BlockingError, match="im2col: lines, double buffered: asked for"):
        WindowPlan("im2col", 1, 64, 64, 64, 64, 64, Window(3, 1, 1), 64, 64)
    with pytest.raises(BlockingError, match="expected images, windows and pieces of at least 1"):
        plan_windows("max", (1, 0, 4, 4), (1, 1), Window(2, 2, 0))
