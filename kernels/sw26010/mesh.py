"""The 8 x 8 mesh of CPEs: tiles spread over it, and the product of tiles by row and column broadcasts.

A tile (R, C) lies in the mesh as (8, 8, r, c) fp64 with r = ceil(R / 8), c = ceil(C / 8): CPE (i, j) holds rows from
i * r and columns from j * c on, zeros where the tile ends. In stage s of a product the CPEs of column s send their
part of A along their rows, and those of row s their part of B along their columns (swDNN, swGEMM).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel
from taihu.kernels.sw26010.dma import Transfer, spread
from taihu.kernels.sw26010.ledger import Work
from taihu.kernels.sw26010.machine import (
    BROADCAST_CYCLES,
    CPES,
    FMA_LANES,
    LDM_LOAD_CYCLES,
    MESH,
    REGISTER_COLUMNS,
    REGISTER_VECTORS,
)

Tile = NDArray[np.float64]


def part(extent: int) -> int:
    """Rows, or columns, of a tile that one CPE holds."""
    return -(-extent // MESH)


def tile_bytes(rows: int, columns: int) -> int:
    """LDM that a tile takes in each CPE, in fp64."""
    return part(rows) * part(columns) * 8


def mesh_tile(rows: int, columns: int) -> Tile:
    """A tile of zeros in the mesh."""
    return np.zeros((MESH, MESH, part(rows), part(columns)))


def tile_transfer(rows: int, columns: int, itemsize: int, order: str) -> Transfer:
    """The DMA of a tile of a matrix in main memory.

    Args:
        rows: of the tile.
        columns: of the tile.
        itemsize: bytes of an element in main memory.
        order: `C` where rows of the matrix are contiguous, `F` where columns are, `A` where nothing is.
    """
    if order == "C":
        return spread(rows, columns, MESH, itemsize)
    if order == "F":
        return spread(columns, rows, MESH, itemsize)
    return spread(rows * columns, 1, 1, itemsize)


def product_work(rows: int, columns: int, depth: int, *, pipelined: bool = True) -> Work:
    """A product of tiles, (rows, depth) by (depth, columns), added to a tile of sums.

    Each CPE works on register blocks of 4 vectors by 4 columns. A step of the inner loop fetches 4 vectors of A and 4
    elements of B (pipeline 1: loads with broadcast, or receipts), and multiplies and adds 16 vectors (pipeline 0).
    Sums stay in registers over the eight stages; they are loaded before, and stored after. At the start of a stage,
    when other CPEs become the senders, the first operands take a load's and a broadcast's latency.

    Args:
        rows: of A.
        columns: of B.
        depth: columns of A, rows of B.
        pipelined: operands of the next step are fetched during this one; otherwise every step waits for a broadcast.
    """
    height, width, length = part(rows), part(columns), part(depth)
    vectors, lines = -(-height // FMA_LANES), width
    cycles = broadcasts = 0
    for v, v_count in _blocks(vectors, REGISTER_VECTORS):
        for c, c_count in _blocks(lines, REGISTER_COLUMNS):
            count = v_count * c_count
            step = max(v * c, v + c) + (0 if pipelined else BROADCAST_CYCLES)
            stage = LDM_LOAD_CYCLES + BROADCAST_CYCLES + length * step
            cycles += count * (MESH * stage + 2 * v * c)
            broadcasts += count * MESH * MESH * length * (v + c)
    flops = 2 * rows * columns * depth
    return Work(cycles, flops // (CPES * 2 * FMA_LANES), flops, broadcasts)


def _blocks(extent: int, size: int) -> list[tuple[int, int]]:
    """(size, number) of the register blocks along one side."""
    full, rest = divmod(extent, size)
    return [(size, full)] * (full > 0) + [(rest, 1)] * (rest > 0)


def convert_work(elements_per_cpe: int) -> Work:
    """Widening of fp32 to fp64 in LDM, or narrowing: a load and a store of each vector on pipeline 1."""
    return Work(2 * -(-elements_per_cpe // FMA_LANES))


def fill_work(elements_per_cpe: int) -> Work:
    """Zeros in LDM: a store of each vector."""
    return Work(-(-elements_per_cpe // FMA_LANES))


@kernel
def get_tile(source: NDArray[Any], tile: Tile, runs: NDArray[np.int64], transposed: bool) -> None:
    """Spread a matrix over the mesh.

    Args:
        source: (R, C), any strides.
        tile: written, of `mesh_tile(R, C)`, or of `mesh_tile(C, R)` if it is `transposed`.
        runs: (C + 1,): runs[n] is raised by the number of pieces of rows of n elements that were moved.
        transposed: the tile is that of the transposed matrix.
    """
    rows, columns = source.shape
    height, width = -(-rows // 8), -(-columns // 8)
    tile[:] = 0.0
    for i in range(8):
        for j in range(8):
            own = tile[j, i] if transposed else tile[i, j]
            last = min(columns, (j + 1) * width)
            for row in range(i * height, min(rows, (i + 1) * height)):
                for column in range(j * width, last):
                    value = np.float64(source[row, column])
                    if transposed:
                        own[column - j * width, row - i * height] = value
                    else:
                        own[row - i * height, column - j * width] = value
                if last > j * width:
                    runs[last - j * width] += 1


@kernel
def put_tile(tile: Tile, target: NDArray[Any], runs: NDArray[np.int64], transposed: bool) -> None:
    """Write a tile to a matrix in main memory, rounded to its type; the counterpart of `get_tile`."""
    rows, columns = target.shape
    height, width = -(-rows // 8), -(-columns // 8)
    for i in range(8):
        for j in range(8):
            own = tile[j, i] if transposed else tile[i, j]
            last = min(columns, (j + 1) * width)
            for row in range(i * height, min(rows, (i + 1) * height)):
                for column in range(j * width, last):
                    if transposed:
                        target[row, column] = own[column - j * width, row - i * height]
                    else:
                        target[row, column] = own[row - i * height, column - j * width]
                if last > j * width:
                    runs[last - j * width] += 1


@kernel
def multiply_tiles(a: Tile, b: Tile, c: Tile) -> None:
    """Add the product of two tiles to a third: in stage s, CPE (i, j) receives A of (i, s) and B of (s, j).

    Args:
        a: (8, 8, m, k).
        b: (8, 8, k, n).
        c: (8, 8, m, n), changed in place.
    """
    for stage in range(8):
        for i in range(8):
            sent_along_row = a[i, stage]
            for j in range(8):
                sent_along_column = b[stage, j]
                own = c[i, j]
                for row in range(own.shape[0]):
                    for step in range(sent_along_row.shape[1]):
                        factor = sent_along_row[row, step]
                        for column in range(own.shape[1]):
                            own[row, column] += factor * sent_along_column[step, column]
