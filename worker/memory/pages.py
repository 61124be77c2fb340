"""Values whose memory is taken when they are written, and given back range by range (ZeRO stages 2 and 3).

The addresses are reserved once, so that views of the arena stay what they are, and offsets mean the same in every
stage. What is given back reads as zeros until it is written again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from taihu.core.system.mappings import (
    MADV_DONTNEED,
    MADV_HUGEPAGE,
    MAP_ANONYMOUS,
    MAP_PRIVATE,
    PAGE_BYTES,
    MappedMemory,
)


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
        first = -(-start * self._itemsize // PAGE_BYTES) * PAGE_BYTES
        end = stop * self._itemsize
        if stop < len(self.values):
            end -= end % PAGE_BYTES
        if first < end:
            self._memory.madvise(MADV_DONTNEED, first, end - first)


def private_memory(size_bytes: int) -> MappedMemory:
    """`size_bytes` zeros, at least a page of them; `madvise(MADV_DONTNEED)` gives pages back.

    They come back as huge pages where the system has such: one by one, pages take several times as long to come as
    they take to write.
    """
    # Private, because shared anonymous memory stays when it is given back.
    memory = MappedMemory(-1, max(PAGE_BYTES, size_bytes), flags=MAP_PRIVATE | MAP_ANONYMOUS)
    with suppress(OSError):  # a system without them
        memory.madvise(MADV_HUGEPAGE)
    return memory
