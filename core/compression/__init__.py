"""Sparsification with error feedback behind one (init, update) interface: none, topk, lags, dlgs."""

from taihu.core.compression.groups import GroupCompressor, Selection
from taihu.core.compression.methods import METHODS, Compressor, make_compressor, method_of
from taihu.core.compression.state import CompressionState, Outcome, Unit, units_of_plan

__all__ = [
    "METHODS",
    "CompressionState",
    "Compressor",
    "GroupCompressor",
    "Outcome",
    "Selection",
    "Unit",
    "make_compressor",
    "method_of",
    "units_of_plan",
]
