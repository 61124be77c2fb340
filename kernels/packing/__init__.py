"""Selected positions and values as bytes, and back."""

from taihu.kernels.packing.section_reader import unpack
from taihu.kernels.packing.section_writer import pack, packed_bound

__all__ = ["pack", "packed_bound", "unpack"]
