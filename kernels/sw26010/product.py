"""Matrix products on core groups, blocked as swGEMM blocks them: (M, K) by (K, N).

A core group holds a tile (bM, bN) of the result in LDM, and gets pairs of tiles (bM, bK) and (bK, bN), double
buffered. fp32 is widened to fp64 in LDM, and results are narrowed there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product as combinations
from typing import Any, Final

from numpy.typing import NDArray

from taihu.kernels.sw26010.core_group import CoreGroup, order_of
from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.errors import BlockingError
from taihu.kernels.sw26010.ldm import Ldm
from taihu.kernels.sw26010.ledger import Ledger, Work
from taihu.kernels.sw26010.machine import CORE_GROUPS, MESH
from taihu.kernels.sw26010.mesh import (
    convert_work,
    fill_work,
    mesh_tile,
    multiply_tiles,
    part,
    product_work,
    tile_bytes,
    tile_transfer,
)

_BLOCKS_M: Final = (128, 256, 384, 512, 640, 768)
_BLOCKS_N: Final = (32, 64, 128, 256, 384, 512, 768)
_BLOCKS_K: Final = (64, 128, 192, 256, 384, 512, 1024)


@dataclass(frozen=True)
class ProductPlan:
    """A legal blocking of one product.

    Attributes:
        m, n, k: of the whole product.
        block_m, block_n, block_k: of the tiles.
        itemsize: bytes of an element in main memory, 4 or 8.
        order_a, order_b, order_c: see `order_of`.
        core_groups: among which the longer side of the result is divided.
        pipelined: see `product_work`.

    Raises:
        BlockingError: an extent is below 1, elements have neither 4 nor 8 bytes, or the chip has fewer core groups.
        LdmOverflowError: the tiles do not fit into LDM.
    """

    m: int
    n: int
    k: int
    block_m: int
    block_n: int
    block_k: int
    itemsize: int = 8
    order_a: str = "C"
    order_b: str = "C"
    order_c: str = "C"
    core_groups: int = 1
    pipelined: bool = True

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.block_m, self.block_n, self.block_k) < 1:
            raise BlockingError(
                f"product: expected extents and blocks of at least 1, seen {self.m} x {self.k} by {self.k} x {self.n}"
                f" in blocks {self.block_m}, {self.block_n}, {self.block_k}; give the shapes of two matrices"
            )
        check_machine(self.itemsize, self.core_groups)
        tiles(self, Ldm())

    def shares(self) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of the result for each core group; as many as there is work for."""
        rows, columns = slice(0, self.m), slice(0, self.n)
        by_rows = self.m >= self.n
        extent = self.m if by_rows else self.n
        share = -(-extent // self.core_groups)
        for first in range(0, extent, share):
            own = slice(first, min(first + share, extent))
            yield (own, columns) if by_rows else (rows, own)

    def cost(self) -> Ledger:
        """The ledger of the product, without computing it."""
        # Core groups have the same share, but for the last one.
        sizes = [(rows.stop - rows.start, columns.stop - columns.start) for rows, columns in self.shares()]
        known = {size: self._cost_of_share(*size) for size in dict.fromkeys(sizes)}
        ledgers = [known[size] for size in sizes]
        return replace(Ledger.together(ledgers, self.compulsory_bytes), core_groups=self.core_groups)

    @property
    def compulsory_bytes(self) -> int:
        """Every element of the three matrices once."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * self.itemsize

    def _cost_of_share(self, m: int, n: int) -> Ledger:
        ledger = Ledger()
        first = (min(m, self.block_m), min(n, self.block_n), min(self.k, self.block_k))
        ledger.begin([self._transfer_a(first[0], first[2]), self._transfer_b(first[2], first[1])])
        for (rows, m_count), (columns, n_count) in combinations(cuts(m, self.block_m), cuts(n, self.block_n)):
            count = m_count * n_count
            ledger.alone(fill_work(part(rows) * part(columns)), times=count)
            for depth, k_count in cuts(self.k, self.block_k):
                transfers = [self._transfer_a(rows, depth), self._transfer_b(depth, columns)]
                ledger.step(self.step_work(rows, columns, depth), transfers, times=count * k_count)
            store = tile_transfer(rows, columns, self.itemsize, self.order_c)
            ledger.alone(self.store_work(rows, columns), [store], times=count)
        return ledger

    def _transfer_a(self, rows: int, depth: int) -> Transfer:
        return tile_transfer(rows, depth, self.itemsize, self.order_a)

    def _transfer_b(self, depth: int, columns: int) -> Transfer:
        return tile_transfer(depth, columns, self.itemsize, self.order_b)

    def step_work(self, rows: int, columns: int, depth: int) -> Work:
        """Multiply a pair of tiles, after widening them."""
        work = product_work(rows, columns, depth, pipelined=self.pipelined)
        if self.itemsize == 8:
            return work
        return work + convert_work(part(rows) * part(depth)) + convert_work(part(depth) * part(columns))

    def store_work(self, rows: int, columns: int) -> Work:
        """Narrow a tile of the result."""
        return Work(0) if self.itemsize == 8 else convert_work(part(rows) * part(columns))


def check_machine(itemsize: int, core_groups: int) -> None:
    """Raise BlockingError for what the chip does not have."""
    if itemsize not in (4, 8):
        raise BlockingError(f"expected elements of 4 or 8 bytes, seen {itemsize}; convert to fp32 or fp64")
    if not 1 <= core_groups <= CORE_GROUPS:
        raise BlockingError(f"expected 1 to {CORE_GROUPS} core groups, seen {core_groups}; a chip has {CORE_GROUPS}")


def tiles(plan: ProductPlan, ldm: Ldm) -> None:
    """Take the room for a plan's tiles; raises LdmOverflowError."""
    m, n, k = min(plan.block_m, plan.m), min(plan.block_n, plan.n), min(plan.block_k, plan.k)
    remedy = f"use smaller blocks than {plan.block_m}, {plan.block_n}, {plan.block_k} for M, N, K"
    ldm.allocate("C", tile_bytes(m, n), remedy)
    ldm.allocate("A, double buffered", 2 * tile_bytes(m, k), remedy)
    ldm.allocate("B, double buffered", 2 * tile_bytes(k, n), remedy)


def cuts(extent: int, block: int) -> list[tuple[int, int]]:
    """(length, number) of the blocks along one side: full ones, then what is left."""
    full, rest = divmod(extent, block)
    return [(block, full)] * (full > 0) + [(rest, 1)] * (rest > 0)


def plan_product(
    m: int,
    n: int,
    k: int,
    *,
    itemsize: int = 8,
    orders: str = "CCC",
    core_groups: int = 1,
    pipelined: bool = True,
) -> ProductPlan:
    """The blocking with the least cycles among those that fit into LDM.

    Args:
        m: rows of A and C.
        n: columns of B and C.
        k: columns of A, rows of B.
        itemsize: bytes of an element in main memory, 4 or 8.
        orders: of A, B and C, see `order_of`.
        core_groups: 1 to 4.
        pipelined: see `product_work`.

    Raises:
        BlockingError: an extent is below 1, or the machine has no such elements or core groups.
    """
    smallest = ProductPlan(
        m, n, k, MESH, MESH, MESH, itemsize, orders[0], orders[1], orders[2], core_groups, pipelined
    )
    rows, columns = next(smallest.shares())
    sides = (rows.stop - rows.start, columns.stop - columns.start, k)
    choices = [
        sorted({min(block, -(-side // MESH) * MESH) for block in blocks})
        for side, blocks in zip(sides, (_BLOCKS_M, _BLOCKS_N, _BLOCKS_K), strict=True)
    ]
    best, least = smallest, smallest.cost().cycles
    for block_m, block_n, block_k in combinations(*choices):
        words = 2 * block_n * block_k + 2 * block_k * block_m + block_m * block_n
        if 8 * words // (MESH * MESH) > Ldm().capacity_bytes:
            continue
        plan = replace(smallest, block_m=block_m, block_n=block_n, block_k=block_k)
        if (cycles := plan.cost().cycles) < least:
            best, least = plan, cycles
    return best


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
