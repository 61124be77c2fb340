"""Atomic access to words of 64 bits that several threads or processes share.

What a thread wrote before `store_release` of a value is seen by whoever reads that value with `load_acquire`, on
every processor: ARM reorders plain loads and stores, and a compiler may keep them in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy.typing import NDArray

Words = NDArray[np.int64]

_BYTES = 8


def _load_acquire(typing_context: Any, array: Any, index: Any) -> Any:
    """`array[index]`, for kernels; array: int64, contiguous, aligned; the index is not checked."""
    _expect_words(array, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        return builder.load_atomic(pointer, "acquire", _BYTES)

    return types.int64(array, types.intp), generate


def _store_release(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Set `array[index]` to `value`, for kernels; array: int64, contiguous, aligned; the index is not checked."""
    _expect_words(array, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], pointer, "release", _BYTES)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate


def _expect_words(array: Any, index: Any) -> None:
    words = isinstance(array, types.Array) and (array.dtype, array.ndim, array.layout) == (types.int64, 1, "C")
    if not words or not array.aligned or not isinstance(index, types.Integer):
        raise TypingError(f"atomic access to {array} at {index}: expected contiguous, aligned int64[n], integer")


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]], inbounds=True)


load_acquire = cast(Callable[[Words, int], int], intrinsic(_load_acquire))
store_release = cast(Callable[[Words, int, int], None], intrinsic(_store_release))
