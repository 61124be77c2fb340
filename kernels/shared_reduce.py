"""The sum of one range of several buffers, written to all of them, in one pass over memory.

Buffers are given by address, so that one machine code serves any number of them. A block is added up in the first
buffer while it is in the processor's cache, and copied to the others before it leaves it: every byte is read from
memory once and written once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import numpy as np
from numba import types
from numba.extending import intrinsic, overload
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from kernels.half import HALF_KINDS, add_codes, scale_codes
from kernels.jit import kernel, kernel_part

__all__ = ["REDUCE_KINDS", "ReduceKind", "dtype_of", "reduce_to_all", "warm_up"]

ReduceKind = Literal["fp32", "fp64", "fp16", "bf16"]
REDUCE_KINDS: tuple[ReduceKind, ...] = get_args(ReduceKind)

_BLOCK_BYTES = 8 << 10


def dtype_of(kind: ReduceKind) -> np.dtype[Any]:
    """The NumPy type that holds values of a kind; of fp16 and bf16 these are the codes of `kernels.half`.

    Raises:
        ValueError: another kind.
    """
    if kind not in REDUCE_KINDS:
        raise ValueError(f"kind of values {kind!r}: expected one of {', '.join(REDUCE_KINDS)}")
    if kind in HALF_KINDS:
        return np.dtype(np.uint16)
    return np.dtype(np.float32 if kind == "fp32" else np.float64)


def reduce_to_all(addresses: NDArray[np.int64], start: int, stop: int, kind: ReduceKind, scale: float = 1.0) -> None:
    """Set elements [start, stop) of every buffer to `(((x[0] + x[1]) + x[2]) + ...) * scale`.

    Every addition is rounded to the kind, and so is the product; a scale of 1 takes no product. The caller's threads
    run in parallel (the GIL is released), and nothing is allocated.

    Args:
        addresses: shape (P,), int64: where the buffers begin, in the order of summation; each aligned to its element
            size, none overlapping another. Not checked.
        start: the first element; not checked against the buffers, nor is `stop`.
        stop: the one after the last.
        kind: type of the elements.
        scale: rounded to the kind first, for fp16 and bf16 to fp32.

    Raises:
        ValueError: another kind. Nothing has changed.
    """
    _reduce_to_all(addresses, start, stop, np.empty(0, dtype=dtype_of(kind)), kind == "fp16", scale)


def warm_up(kind: ReduceKind) -> None:
    """Compile the kernel of a kind, or load it from the disk cache, so that the first real call does not wait."""
    reduce_to_all(np.empty(0, dtype=np.int64), 0, 0, kind)


@kernel
def _reduce_to_all(  # noqa: PLR0917 - kernels take no keywords
    addresses: NDArray[np.int64], start: int, stop: int, like: NDArray[Any], fp16: bool, scale: float
) -> None:
    step = _BLOCK_BYTES // like.itemsize
    for begin in range(start, stop, step):
        count = min(step, stop - begin)
        total = _view(addresses[0], begin, count, like)
        for i in range(1, len(addresses)):
            _accumulate(total, _view(addresses[i], begin, count, like), fp16)
        if scale != 1.0:
            _multiply(total, scale, fp16)
        for i in range(1, len(addresses)):
            _copy(total, _view(addresses[i], begin, count, like))


@kernel_part
def _view(address: int, begin: int, count: int, like: NDArray[Any]) -> NDArray[Any]:
    return carray(_pointer(address + begin * like.itemsize), (count,), like.dtype)


@kernel_part
def _copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    for i in range(len(target)):
        target[i] = source[i]


@kernel
def _add_floats(total: NDArray[Any], values: NDArray[Any]) -> None:
    for i in range(len(total)):
        total[i] += values[i]


@kernel
def _multiply_floats(total: NDArray[Any], scale: float) -> None:
    factor = total.dtype.type(scale)
    for i in range(len(total)):
        total[i] *= factor


def _accumulate(total: Any, values: Any, fp16: Any) -> None:
    """Add `values` to `total`; kernels take the version for their type."""


def _multiply(total: Any, scale: Any, fp16: Any) -> None:
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


overload(_accumulate)(_accumulate_for)
overload(_multiply)(_multiply_for)


def _to_pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


_pointer = cast(Callable[[int], Any], intrinsic(_to_pointer))
