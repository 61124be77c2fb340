"""Sparsification with error feedback behind one (init, update) interface: none, topk, lags, dlgs."""

from taihu.compression.methods import METHODS, Compressor, make_compressor
from taihu.compression.state import CompressionState, Unit, UnitReport, units_of_plan

__all__ = [
    "METHODS",
    "CompressionState",
    "Compressor",
    "Unit",
    "UnitReport",
    "make_compressor",
    "units_of_plan",
]
