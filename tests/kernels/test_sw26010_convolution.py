"""swDNN-like convolution: NumPy's results, swDNN's rules, and the published measurements."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.sw26010.convolution import (
    ConvolutionPlan,
    FilterPlace,
    execute_convolution,
    most_columns,
    plan_convolution,
)
from taihu.kernels.sw26010.errors import BlockingError, LdmOverflowError
from taihu.kernels.sw26010.grids import PUBLISHED_SWDNN, ConvolutionShape, paper_grid, swdnn_grid


def _oracle(images: Any, filters: Any) -> Any:
    """(H, W, Ni, B) and (K, K, No, Ni) to (OH, OW, No, B), in fp64."""
    size = len(filters)
    height, width = (side - size + 1 for side in images.shape[:2])
    total = np.zeros((height, width, filters.shape[2], images.shape[3]))
    for row in range(size):
        for column in range(size):
            window = images[row : row + height, column : column + width].astype(np.float64)
            total += np.matmul(filters[row, column].astype(np.float64), window)
    return total


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from([64, 96]),
    st.sampled_from([64, 96]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from(get_args(FilterPlace)),
    st.sampled_from([np.float32, np.float64]),
    st.integers(1, 4),
)
def test_convolutions_equal_numpys_and_cost_what_was_planned(  # noqa: PLR0917 - drawn
    inputs: int,
    outputs: int,
    height: int,
    width: int,
    size: int,
    columns: int,
    place: FilterPlace,
    dtype: Any,
    core_groups: int,
) -> None:
    rng = np.random.default_rng(height * 7 + width)
    images = rng.standard_normal((height + size - 1, width + size - 1, inputs, 128)).astype(dtype)
    filters = rng.standard_normal((size, size, outputs, inputs)).astype(dtype)
    results = np.full((height, width, outputs, 128), np.nan, dtype)
    itemsize = np.dtype(dtype).itemsize
    plan = ConvolutionPlan(128, inputs, outputs, height, width, size, columns, place, itemsize, core_groups)
    ledger = execute_convolution(plan, images, filters, results)
    rtol, atol = (1e-11, 1e-11) if itemsize == 8 else (1e-6, 1e-4)
    np.testing.assert_allclose(results, _oracle(images, filters), rtol=rtol, atol=atol)
    assert ledger == plan.cost()
    assert ledger.flops == 2 * 128 * inputs * outputs * height * width * size**2


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 9))
def test_filters_pass_by_as_often_as_each_loop_says(height: int, width: int, size: int, columns: int) -> None:
    def filter_bytes(place: FilterPlace) -> int:
        plan = ConvolutionPlan(128, 64, 96, height, width, size, columns, place)
        images = 8 * 128 * 64 * height * size * sum(count + size - 1 for count in tiles)
        return plan.cost().dma_bytes - images - 8 * 128 * 96 * height * width

    tiles = [min(columns, width - first) for first in range(0, width, columns)]
    tap = 8 * 64 * 96
    assert filter_bytes("streamed") == tap * height * size * sum((count + size - 1) * size for count in tiles)
    assert filter_bytes("needed") == tap * height * size * sum(count * size for count in tiles)
    assert filter_bytes("row") == tap * height * size * size * len(tiles)


def test_tiles_are_as_wide_as_swdnns_rule_says() -> None:
    assert most_columns(128, 128, 128) == 26
    assert plan_convolution(128, 128, 128, 64, 64, 3).columns == 26
    assert plan_convolution(128, 384, 384, 64, 64, 3).columns == 2
    assert plan_convolution(128, 64, 64, 64, 32, 3).columns == 32
    with pytest.raises(LdmOverflowError):
        replace(plan_convolution(128, 128, 128, 64, 64, 3), columns=27)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((100, 64, 64, 8, 8, 3), "batch 100: expected a multiple of 128"),
        ((128, 32, 64, 8, 8, 3), "32 input channels: expected at least 64 and a multiple of 32"),
        ((128, 64, 100, 8, 8, 3), "100 output channels: expected at least 64"),
        ((128, 64, 64, 0, 8, 3), "expected a result, filters and tiles of at least 1 pixel"),
        (
            (128, 512, 512, 8, 8, 3),
            "convolution of 512 to 512 channels, batch 128: tile filter taps",
        ),
        ((128, 64, 64, 8, 8, 0), "at least 1 pixel"),
    ],
)
def test_illegal_blockings_are_refused(arguments: tuple[int, int, int, int, int, int], message: str) -> None:
    with pytest.raises(BlockingError, match=message):
        plan_convolution(*arguments)


def test_other_refusals() -> None:
    plan = plan_convolution(128, 64, 64, 2, 2, 3)
    with pytest.raises(BlockingError, match="filters=all: expected one of streamed, needed, row"):
        replace(plan, filters=cast(FilterPlace, "all"))
    images, filters, results = np.ones((4, 4, 64, 128)), np.ones((3, 3, 64, 64)), np.ones((2, 2, 64, 128))
    with pytest.raises(BlockingError, match=r"images: expected \(4, 4, 64, 128\) of 8-byte floats"):
        execute_convolution(plan, images[:3], filters, results)
    with pytest.raises(BlockingError, match="filters: expected"):
        execute_convolution(plan, images, filters.astype(np.float32), results)


def test_the_median_over_the_measured_configurations_is_near_the_published_one() -> None:
    grid = swdnn_grid()
    assert len(grid) == 172
    assert len(set(grid)) == 172
    _, published, _ = PUBLISHED_SWDNN
    for loop in ("streamed", "log"):
        speeds = [shape.run(loop).gflops for shape in grid]
        assert abs(statistics.median(speeds) / published - 1) < 0.15


def test_the_measured_programs_loop_falls_off_with_the_width_of_its_tiles() -> None:
    shapes = [ConvolutionShape(128, 128, outputs, 16, 3) for outputs in range(224, 353, 32)]
    assert [shape.columns_of_log for shape in shapes] == [6, 4, 3, 2, 1]
    speeds = [shape.run("log").gflops for shape in shapes]
    assert speeds == sorted(speeds, reverse=True)
    # Its log has 1245 and 726 for the first and the last one.
    assert speeds[-1] < 0.75 * speeds[0]


def test_all_of_the_papers_sweep_can_be_run() -> None:
    grid = paper_grid()
    assert len(grid) >= 172
    ledgers = [shape.cost() for shape in grid]
    assert {shape.size for shape in grid} == set(range(3, 22, 2))
    assert all(0 < ledger.efficiency < 1 for ledger in ledgers)
