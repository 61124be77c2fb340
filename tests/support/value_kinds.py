"""Values of the kinds that dense allreduces know, and their sums by NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.sums import ReduceKind

__all__ = ["random_values", "same_bits", "summed"]

Values = NDArray[Any]


def random_values(rng: np.random.Generator, elements: int, kind: ReduceKind) -> Values:
    """Values so different in size that another order of summation gives other bits; stored as the kind is."""
    return _stored(rng.standard_normal(elements) * 10.0 ** rng.integers(-2, 3, elements), kind)


def summed(contributions: Sequence[Values], kind: ReduceKind, *, mean: bool) -> Values:
    """The contributions added from left to right, and divided by their number, each result rounded to the kind."""
    total = contributions[0]
    for values in contributions[1:]:
        total = _stored(_wide(total, kind) + _wide(values, kind), kind)
    if not mean or len(contributions) == 1:
        return total
    wide = _wide(total, kind)
    return _stored(wide * wide.dtype.type(1 / len(contributions)), kind)


def same_bits(left: Values, right: Values) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def _wide(values: Values, kind: ReduceKind) -> Values:
    """In the type in which sums are formed; exactly."""
    if kind == "fp16":
        return values.view(np.float16).astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else values


def _stored(values: Values, kind: ReduceKind) -> Values:
    """Rounded to nearest, ties to even; finite values far from the largest of the kind."""
    if kind == "fp64":
        return values.astype(np.float64)
    if kind == "fp16":
        return values.astype(np.float32).astype(np.float16).view(np.uint16)
    if kind == "fp32":
        return values.astype(np.float32)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
