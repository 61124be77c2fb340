"""Tiles spread over the 8 x 8 mesh of CPEs: how they are filled, emptied and multiplied.

A tile (R, C) lies in the mesh as (8, 8, r, c) fp64 with r = ceil(R / 8), c = ceil(C / 8): CPE (i, j) holds rows from
i * r and columns from j * c on, zeros where the tile ends. In stage s of a product the CPEs of column s send their
part of A along their rows, and those of row s their part of B along their columns (swDNN, swGEMM).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel
from taihu.kernels.sw26010.machine import MESH
from taihu.kernels.sw26010.mesh import part

Tile = NDArray[np.float64]


def mesh_tile(rows: int, columns: int) -> Tile:
    """A tile of zeros in the mesh."""
    return np.zeros((MESH, MESH, part(rows), part(columns)))


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
