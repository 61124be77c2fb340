"""Compression with error feedback behind one (init, update) interface: topk, lags, dlgs, quantized."""

from taihu.core.compression.groups import GroupCompressor, Packed, Selection
from taihu.core.compression.methods import Compressor, make_compressor
from taihu.core.compression.state import CompressionState, Outcome, Unit, units_of_plan

__all__ = [
    "CompressionState",
    "Compressor",
    "GroupCompressor",
    "Outcome",
    "Packed",
    "Selection",
    "Unit",
    "make_compressor",
    "units_of_plan",
]
