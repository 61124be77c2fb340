"""Values whose memory is taken when they are written, and given back range by range (ZeRO stages 2 and 3).

The addresses are reserved once, so that views of the arena stay what they are, and offsets mean the same in every
stage. What is given back reads as zeros until it is written again.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Pages", "private_memory"]


class Pages:
    """An arena of `elements` values of one type, shape (elements,), all zero at first."""

    def __init__(self, elements: int, dtype: DTypeLike = np.float32) -> None:
        self._itemsize = np.dtype(dtype).itemsize
        self._memory = private_memory(elements * self._itemsize)
        self.values: NDArray[Any] = np.frombuffer(self._memory, dtype=dtype, count=elements)

    def release(self, start: int, stop: int) -> None:
        """Give back the memory of elements [start, stop), whose values are lost.

        A page that also holds other elements stays.
        """
        first = -(-start * self._itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        end = stop * self._itemsize
        if stop < len(self.values):
            end -= end % mmap.PAGESIZE
        if first < end:
            self._memory.madvise(mmap.MADV_DONTNEED, first, end - first)


def private_memory(size_bytes: int) -> mmap.mmap:
    """`size_bytes` zeros, at least a page of them; `madvise(MADV_DONTNEED)` gives pages back.

    They come back as huge pages where the system has such: one by one, pages take several times as long to come as
    they take to write.
    """
    # Private, because shared anonymous memory stays when it is given back.
    memory = mmap.mmap(-1, max(mmap.PAGESIZE, size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
