"""The sum of one range of several buffers, written to all of them, in one pass over memory.

Buffers are given by address, so that one machine code serves any number of them. A block is added up in the first
buffer while it is in the processor's cache, and copied to the others before it leaves it: every byte is read from
memory once and written once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.base.memory import memory_at
from taihu.kernels.sums import ReduceKind, accumulate, dtype_of, multiply

_BLOCK_BYTES = 8 << 10


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
            accumulate(total, _view(addresses[i], begin, count, like), fp16)
        if scale != 1.0:
            multiply(total, scale, fp16)
        for i in range(1, len(addresses)):
            _copy(total, _view(addresses[i], begin, count, like))


@kernel_part
def _view(address: int, begin: int, count: int, like: NDArray[Any]) -> NDArray[Any]:
    return memory_at(address + begin * like.itemsize, count, like.dtype)


@kernel_part
def _copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    for i in range(len(target)):
        target[i] = source[i]
