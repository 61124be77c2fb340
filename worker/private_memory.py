"""Memory of this process alone that can be given back while arrays still refer to it."""

from __future__ import annotations

import mmap
from contextlib import suppress

__all__ = ["private_memory"]


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
