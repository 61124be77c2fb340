"""A core group that computes: tiles in LDM, DMA that moves them, and a ledger of what was done."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.ldm import Ldm
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.mesh import Tile, get_tile, mesh_tile, put_tile, tile_bytes


def order_of(matrix: NDArray[Any]) -> str:
    """Along what a matrix is contiguous: `C` (rows), `F` (columns) or `A` (nothing)."""
    if matrix.strides[1] == matrix.itemsize:
        return "C"
    return "F" if matrix.strides[0] == matrix.itemsize else "A"


class CoreGroup:
    """64 CPEs with their local memories, and the ledger of what they do.

    Attributes:
        ldm: the allocator; all CPEs hold parts of the same tiles.
        ledger: what has been done so far.
    """

    def __init__(self) -> None:
        self.ldm = Ldm()
        self.ledger = Ledger()

    def tile(self, name: str, rows: int, columns: int, buffers: int = 1) -> Tile:
        """Room for a tile in LDM, twice where it is double buffered; the model needs one array for both.

        Raises:
            LdmOverflowError: there is none.
        """
        self.ldm.allocate(name, buffers * tile_bytes(rows, columns))
        return mesh_tile(rows, columns)

    def get(self, source: NDArray[Any], tile: Tile, order: str) -> Transfer:
        """Move a part of a matrix in main memory to LDM.

        Args:
            source: (R, C), fp32 or fp64.
            tile: written, of `mesh_tile(R, C)`.
            order: of the whole matrix, see `order_of`; the strides of a part with one row or column do not tell it.

        Returns:
            What was moved, as it was counted on the way.
        """
        return _moved(source, tile, order, get=True)

    def put(self, tile: Tile, target: NDArray[Any], order: str) -> Transfer:
        """Move a tile to main memory, the other way round."""
        return _moved(target, tile, order, get=False)


def _moved(matrix: NDArray[Any], tile: Tile, order: str, *, get: bool) -> Transfer:
    # Contiguous pieces run along rows of what the kernels see: a matrix by columns is seen transposed.
    transposed = order == "F"
    seen = matrix.T if transposed else matrix
    runs = np.zeros(seen.shape[1] + 1, np.int64)
    if get:
        get_tile(seen, tile, runs, transposed)
    else:
        put_tile(tile, seen, runs, transposed)
    if order == "A":
        return Transfer(((matrix.itemsize, matrix.size),)) if matrix.size else Transfer(())
    lengths = [int(length) for length in np.flatnonzero(runs)[::-1]]
    return Transfer(tuple((length * matrix.itemsize, int(runs[length])) for length in lengths))
