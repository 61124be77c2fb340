"""Products on the mesh: NumPy's results, formulas for what is moved, the same ledger with and without computing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.sw26010.core_group import order_of
from taihu.kernels.sw26010.errors import BlockingError, LdmOverflowError
from taihu.kernels.sw26010.machine import BROADCAST_CYCLES
from taihu.kernels.sw26010.mesh import product_work
from taihu.kernels.sw26010.product import ProductPlan, execute_product, matrix_product, plan_product

_sides = st.integers(1, 70)


def _matrix(rows: int, columns: int, dtype: Any, order: str, seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal((2 * rows, 2 * columns)).astype(dtype)
    if order == "A":
        return values[::2, ::2]
    part = np.ascontiguousarray(values[:rows, :columns])
    return part if order == "C" else np.asfortranarray(part)


@settings(deadline=None, max_examples=60)
@given(
    _sides,
    _sides,
    _sides,
    st.tuples(*[st.integers(1, 80)] * 3),
    st.sampled_from([np.float32, np.float64]),
    st.tuples(*[st.sampled_from("CFA")] * 3),
    st.integers(1, 4),
)
def test_products_equal_numpys_and_cost_what_was_planned(  # noqa: PLR0917 - drawn
    m: int, n: int, k: int, blocks: tuple[int, ...], dtype: Any, orders: tuple[str, ...], core_groups: int
) -> None:
    a, b = _matrix(m, k, dtype, orders[0], 1), _matrix(k, n, dtype, orders[1], 2)
    out = _matrix(m, n, dtype, orders[2], 3)
    own = "".join(order_of(matrix) for matrix in (a, b, out))
    rows, columns, depth = blocks
    itemsize = np.dtype(dtype).itemsize
    plan = ProductPlan(m, n, k, rows, columns, depth, itemsize, own[0], own[1], own[2], core_groups)
    ledger = execute_product(plan, a, b, out)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    tolerance = 1e-12 if dtype == np.float64 else 2e-7 * (1 + np.abs(exact).max())
    np.testing.assert_allclose(out, exact, rtol=2e-7, atol=tolerance)
    assert ledger == plan.cost()
    assert ledger.flops == 2 * m * n * k
    assert ledger.cycles >= ledger.flops / (512 * core_groups)


@settings(deadline=None, max_examples=40)
@given(_sides, _sides, _sides, st.tuples(*[st.integers(1, 80)] * 3))
def test_operands_are_read_once_for_each_tile_of_the_other_side(
    m: int, n: int, k: int, blocks: tuple[int, ...]
) -> None:
    block_m, block_n, block_k = blocks
    ledger = ProductPlan(m, n, k, block_m, block_n, block_k).cost()
    assert ledger.dma_bytes == 8 * (m * k * -(-n // block_n) + k * n * -(-m // block_m) + m * n)
    assert ledger.compulsory_bytes == 8 * (m * k + k * n + m * n)


def test_a_full_tile_is_bound_by_its_pipelines() -> None:
    # 32 x 32 x 32 in each CPE: 2 x 8 register blocks, 8 stages of 32 steps of 16 multiplications and additions.
    work = product_work(256, 256, 256)
    assert work.cycles == 2 * 8 * (8 * (4 + 14 + 32 * 16) + 16 + 16)
    assert work.arithmetic_cycles == 2 * 8 * 8 * 32 * 16
    assert work.broadcasts == 2 * 8 * 8 * 32 * 8 * (4 + 4)
    waiting = product_work(256, 256, 256, pipelined=False)
    assert waiting.cycles - work.cycles == 2 * 8 * 8 * 32 * BROADCAST_CYCLES
    # One column leaves pipeline 0 idle: 4 vectors of A and an element of B are fetched for 4 multiplications.
    assert product_work(128, 8, 64).cycles == 8 * (4 + 14 + 8 * 5) + 4 + 4


def test_large_products_reach_the_published_efficiency_and_small_ones_do_not() -> None:
    by_size = {size: plan_product(size, size, size).cost() for size in (64, 256, 1024, 4096, 8192, 16384)}
    efficiencies = [ledger.efficiency for ledger in by_size.values()]
    assert efficiencies == sorted(efficiencies)
    for size in (4096, 8192, 16384):
        assert 0.88 <= by_size[size].efficiency <= 0.95
        assert by_size[size].limited_by == "compute"
    assert by_size[64].efficiency < 0.1
    assert by_size[256].efficiency < 0.5
    assert by_size[64].limited_by == "dma"


def test_a_blocking_whose_tiles_are_read_too_often_is_limited_by_ldm() -> None:
    plan = replace(plan_product(2048, 2048, 2048), block_m=64, block_n=64)
    assert plan.cost().limited_by == "ldm"


def test_waiting_for_every_broadcast_takes_its_latency() -> None:
    hidden, waiting = (plan_product(4096, 4096, 4096, pipelined=pipelined).cost() for pipelined in (True, False))
    assert waiting.cycles / hidden.cycles == pytest.approx((16 + 14) / 16, rel=0.1)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([4, 8]), st.integers(1, 4))
def test_the_planned_blocking_is_legal_and_no_slower_than_the_smallest(
    m: int, n: int, k: int, itemsize: int, core_groups: int
) -> None:
    plan = plan_product(m, n, k, itemsize=itemsize, core_groups=core_groups)
    words = 2 * plan.block_n * plan.block_k + 2 * plan.block_k * plan.block_m + plan.block_m * plan.block_n
    assert 8 * words / 64 <= 60 * 1024
    assert plan.cost().cycles <= replace(plan, block_m=8, block_n=8, block_k=8).cost().cycles


def test_tiles_that_do_not_fit_are_refused() -> None:
    message = "tile B, double buffered: asked for 32768 bytes .* 28672 of 61440 are free; use smaller blocks than 256"
    with pytest.raises(LdmOverflowError, match=message):
        ProductPlan(1024, 1024, 1024, 256, 512, 256)
    # The same blocks hold a smaller product: tiles are no larger than the matrices.
    ProductPlan(128, 128, 128, 256, 512, 256)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": 0}, "expected extents and blocks of at least 1"),
        ({"block_k": 0}, "expected extents and blocks of at least 1"),
        ({"itemsize": 2}, "expected elements of 4 or 8 bytes, seen 2"),
        ({"core_groups": 5}, "expected 1 to 4 core groups, seen 5"),
    ],
)
def test_illegal_blockings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BlockingError, match=message):
        replace(ProductPlan(64, 64, 64, 64, 64, 64), **change)


def test_matrices_that_do_not_fit_together_are_refused() -> None:
    a, b, out = np.ones((3, 4)), np.ones((5, 6)), np.ones((3, 6))
    with pytest.raises(BlockingError, match=r"expected \(M, K\), \(K, N\) and \(M, N\) of one type"):
        matrix_product(a, b, out)
    with pytest.raises(BlockingError, match="of one type"):
        matrix_product(a, np.ones((4, 6), np.float32), out)
