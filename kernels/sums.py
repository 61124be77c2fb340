"""Sums and products of values of one kind in place, as kernels for several kinds take them."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from taihu.kernels.base.half import HALF_KINDS, add_codes, scale_codes
from taihu.kernels.base.jit import kernel

ReduceKind = Literal["fp32", "fp64", "fp16", "bf16"]
REDUCE_KINDS: tuple[ReduceKind, ...] = get_args(ReduceKind)


def dtype_of(kind: ReduceKind) -> np.dtype[Any]:
    """The NumPy type that holds values of a kind; of fp16 and bf16 these are the codes of `taihu.kernels.base.half`.

    Raises:
        ValueError: another kind.
    """
    if kind not in REDUCE_KINDS:
        raise ValueError(f"kind of values {kind!r}: expected one of {', '.join(REDUCE_KINDS)}")
    if kind in HALF_KINDS:
        return np.dtype(np.uint16)
    return np.dtype(np.float32 if kind == "fp32" else np.float64)


@kernel
def _add_floats(total: NDArray[Any], values: NDArray[Any]) -> None:
    for i in range(len(total)):
        total[i] += values[i]


@kernel
def _multiply_floats(total: NDArray[Any], scale: float) -> None:
    factor = total.dtype.type(scale)
    for i in range(len(total)):
        total[i] *= factor


def accumulate(total: Any, values: Any, fp16: Any) -> None:
    """Add `values` to `total`; kernels take the version for their type."""


def multiply(total: Any, scale: Any, fp16: Any) -> None:
    """Multiply `total` by `scale`; kernels take the version for their type."""


# numba compares the annotations of a version with those of its chooser.
def _accumulate_for(total: Any, values: Any, fp16: Any) -> Any:
    def floats(total: Any, values: Any, fp16: Any) -> Any:
        _add_floats(total, values)

    def codes(total: Any, values: Any, fp16: Any) -> Any:
        add_codes(values, total, fp16)

    return floats if isinstance(total.dtype, types.Float) else codes


def _multiply_for(total: Any, scale: Any, fp16: Any) -> Any:
    def floats(total: Any, scale: Any, fp16: Any) -> Any:
        _multiply_floats(total, scale)

    def codes(total: Any, scale: Any, fp16: Any) -> Any:
        scale_codes(total, np.float32(scale), fp16)

    return floats if isinstance(total.dtype, types.Float) else codes


overload(accumulate)(_accumulate_for)
overload(multiply)(_multiply_for)
