"""Memory that is mapped: of files that processes share, and of a process's own that it gives back."""

from __future__ import annotations

import mmap
from mmap import (
    MADV_DONTNEED,
    MADV_HUGEPAGE,
    MAP_ANONYMOUS,
    MAP_POPULATE,
    MAP_PRIVATE,
    MAP_SHARED,
    PROT_READ,
    PROT_WRITE,
)
from mmap import PAGESIZE as PAGE_BYTES

__all__ = [
    "MADV_DONTNEED",
    "MADV_HUGEPAGE",
    "MAP_ANONYMOUS",
    "MAP_POPULATE",
    "MAP_PRIVATE",
    "MAP_SHARED",
    "PAGE_BYTES",
    "PROT_READ",
    "PROT_WRITE",
    "MappedMemory",
]

MappedMemory = mmap.mmap
