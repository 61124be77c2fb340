"""The local memory (LDM) of a CPE: an allocator that refuses what does not fit."""

from __future__ import annotations

from taihu.kernels.sw26010.errors import LdmOverflowError
from taihu.kernels.sw26010.machine import LDM_USABLE_BYTES

_ALIGNMENT = 32  # Bytes of a vector.


class Ldm:
    """The local memory of every CPE of a core group: all of them hold parts of the same tiles.

    Args:
        capacity_bytes: of one CPE.

    Attributes:
        free_bytes: what is left.
        tiles: bytes of each tile, by name.
    """

    def __init__(self, capacity_bytes: int = LDM_USABLE_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.free_bytes = capacity_bytes
        self.tiles: dict[str, int] = {}

    def allocate(self, tile: str, size_bytes: int, remedy: str = "use smaller blocks") -> None:
        """Take room for a tile, in whole vectors.

        Args:
            tile: its name, new in this memory.
            size_bytes: of one CPE's part.
            remedy: what to do if it does not fit.

        Raises:
            LdmOverflowError: it does not fit.
        """
        rounded = -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        if rounded > self.free_bytes:
            raise LdmOverflowError(
                f"tile {tile}: asked for {rounded} bytes of LDM in each CPE, {self.free_bytes} of "
                f"{self.capacity_bytes} are free; {remedy}"
            )
        if tile in self.tiles:
            raise LdmOverflowError(f"tile {tile}: is in LDM already; give it another name or release it first")
        self.tiles[tile] = rounded
        self.free_bytes -= rounded

    def release(self, tile: str) -> None:
        """Give a tile's room back."""
        self.free_bytes += self.tiles.pop(tile)
