"""Values whose memory is taken when they are written, and given back range by range (ZeRO stages 2 and 3).

The addresses are reserved once, so that views of the arena stay what they are, and offsets mean the same in every
stage. What is given back reads as zeros until it is written again.
"""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.private_memory import private_memory

__all__ = ["Pages"]

_BYTES_PER_VALUE: Final = 4


class Pages:
    """An arena of `elements` fp32 values, shape (elements,), all zero at first."""

    def __init__(self, elements: int) -> None:
        self._memory = private_memory(elements * _BYTES_PER_VALUE)
        self.values: NDArray[np.float32] = np.frombuffer(self._memory, dtype=np.float32, count=elements)

    def release(self, start: int, stop: int) -> None:
        """Give back the memory of elements [start, stop), whose values are lost.

        A page that also holds other elements stays.
        """
        first = -(-start * _BYTES_PER_VALUE // mmap.PAGESIZE) * mmap.PAGESIZE
        end = stop * _BYTES_PER_VALUE
        if stop < len(self.values):
            end -= end % mmap.PAGESIZE
        if first < end:
            self._memory.madvise(mmap.MADV_DONTNEED, first, end - first)
