"""Addition and scaling of values of every type that workers reduce."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.half import add_half, scale_half
from kernels.shared_reduce import ReduceKind
from taihu.wire.headers import ValueType

__all__ = ["add_values", "reduce_kind", "scale_values"]


def add_values(values: NDArray[Any], out: NDArray[Any], value_type: ValueType) -> None:
    """Add `values` to `out`, both of shape (n,) and of the type's dtype; 16-bit sums are rounded from fp32."""
    kind = value_type.half_kind
    if kind is None:
        np.add(out, values, out=out)
    else:
        add_half(values, kind, out)


def scale_values(values: NDArray[Any], factor: float, value_type: ValueType) -> None:
    """Multiply `values` (shape (n,), the type's dtype) by `factor` in place."""
    kind = value_type.half_kind
    if kind is None:
        np.multiply(values, values.dtype.type(factor), out=values)
    else:
        scale_half(values, kind, factor)


def reduce_kind(value_type: ValueType) -> ReduceKind:
    """The type's name in `kernels.shared_reduce`."""
    kinds: dict[ValueType, ReduceKind] = {
        ValueType.FP32: "fp32",
        ValueType.FP64: "fp64",
        ValueType.FP16: "fp16",
        ValueType.BF16: "bf16",
    }
    return kinds[value_type]
