"""Matrix products on core groups, computed as `taihu.kernels.sw26010.product` plans them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as combinations
from typing import Any

from numpy.typing import NDArray

from support.sw26010.core_group import CoreGroup, order_of
from support.sw26010.tiles import mesh_tile, multiply_tiles
from taihu.kernels.sw26010.errors import BlockingError
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.mesh import fill_work
from taihu.kernels.sw26010.product import ProductPlan, plan_product, tiles


def matrix_product(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], *, core_groups: int = 1, plan: ProductPlan | None = None
) -> Ledger:
    """Write the product of two matrices, computed on the processor tile by tile.

    Args:
        a: (M, K), float32 or float64, any strides.
        b: (K, N), of the same type.
        out: (M, N), of the same type; written.
        core_groups: 1 to 4.
        plan: the blocking; the best one for these matrices when not given.

    Raises:
        BlockingError: shapes or types do not fit together.
    """
    (m, k), n = a.shape, b.shape[1]
    if b.shape[0] != k or out.shape != (m, n) or not a.dtype == b.dtype == out.dtype:
        raise BlockingError(
            f"product: expected (M, K), (K, N) and (M, N) of one type, seen {a.shape} {a.dtype}, {b.shape} {b.dtype},"
            f" {out.shape} {out.dtype}; convert or transpose an operand"
        )
    if plan is None:
        orders = "".join(order_of(matrix) for matrix in (a, b, out))
        plan = plan_product(m, n, k, itemsize=a.itemsize, orders=orders, core_groups=core_groups)
    return execute_product(plan, a, b, out)


def execute_product(plan: ProductPlan, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> Ledger:
    """Compute as planned; returns the ledger as it was counted."""
    ledgers = []
    for rows, columns in plan.shares():
        group = CoreGroup()
        tiles(plan, group.ldm)
        _execute_share(plan, a[rows], b[:, columns], out[rows, columns], group)
        ledgers.append(group.ledger)
    return replace(Ledger.together(ledgers, plan.compulsory_bytes), core_groups=plan.core_groups)


def _execute_share(plan: ProductPlan, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], group: CoreGroup) -> None:
    ledger = group.ledger
    (m, k), n = a.shape, b.shape[1]
    for top, left in combinations(range(0, m, plan.block_m), range(0, n, plan.block_n)):
        target = out[top : top + plan.block_m, left : left + plan.block_n]
        rows, columns = target.shape
        sums = mesh_tile(rows, columns)
        ledger.alone(fill_work(sums[0, 0].size))
        for first in range(0, k, plan.block_k):
            own_a = a[top : top + rows, first : first + plan.block_k]
            own_b = b[first : first + plan.block_k, left : left + columns]
            depth = own_a.shape[1]
            tile_a, tile_b = mesh_tile(rows, depth), mesh_tile(depth, columns)
            transfers = [group.get(own_a, tile_a, plan.order_a), group.get(own_b, tile_b, plan.order_b)]
            if not ledger.dma_cycles:
                ledger.begin(transfers)
            multiply_tiles(tile_a, tile_b, sums)
            ledger.step(plan.step_work(rows, columns, depth), transfers)
        moved = group.put(sums, target, plan.order_c)
        ledger.alone(plan.store_work(rows, columns), [moved])
