"""The buffers of layers: of each its own, or out of memory that many use one after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from taihu.core.system.mappings import MADV_DONTNEED
from taihu.worker.memory.pages import private_memory

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

_CACHE_LINE: Final = 64


def _aligned_bytes(size: int) -> Bytes:
    raw = np.empty(size + _CACHE_LINE, dtype=np.uint8)
    offset = -raw.ctypes.data % _CACHE_LINE
    return raw[offset : offset + size]


class Workspace:
    """Buffers that are allocated once and handed out again.

    A buffer's content lasts until the same key is taken again, with whatever shape; a smaller batch, as in the last
    step of an evaluation, uses the front of the memory of the larger one.

    Args:
        allocate: returns so many bytes, aligned to a cache line; memory of this workspace's own when not given.
    """

    def __init__(self, allocate: Callable[[int], Bytes] = _aligned_bytes) -> None:
        self._allocate = allocate
        self._storage: dict[str, Bytes] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of all buffers together."""
        return sum(storage.size for storage in self._storage.values())

    def take(self, key: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return a C-contiguous buffer aligned to a cache line; its content is arbitrary."""
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        storage = self._storage.get(key)
        if storage is None or storage.size < size:
            storage = self._allocate(size)
            self._storage[key] = storage
        return storage[:size].view(dtype).reshape(shape)

    def copy(self, key: str, values: Array) -> Array:
        """Return a buffer with a copy of `values`."""
        buffer = self.take(key, values.shape, values.dtype)
        np.copyto(buffer, values)
        return buffer

    def clear(self) -> None:
        """Forget all buffers: each is allocated again when it is taken."""
        self._storage.clear()


class BufferPool:
    """Memory that workspaces fill up together until `reset` takes it back from all of them.

    Buffers are cut from the front of one block. What it has no room for lies in blocks of its own until the reset,
    and then one block as large as all of them takes their place. So the pool is as large as what was ever taken
    between two resets, and once a step has been run, nothing is allocated any more.
    """

    def __init__(self) -> None:
        self._workspaces: list[Workspace] = []
        self._blocks: list[_Block] = []
        self._used = 0
        self._taken = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(len(block.bytes) for block in self._blocks)

    def workspace(self) -> Workspace:
        """Return a new workspace of this pool's memory; what is taken from it is valid until the next reset."""
        workspace = Workspace(self._allocate)
        self._workspaces.append(workspace)
        return workspace

    def reset(self) -> None:
        """Take all buffers back."""
        for workspace in self._workspaces:
            workspace.clear()
        if len(self._blocks) > 1:
            for block in self._blocks:
                block.give_back()
            self._blocks = [_Block(self._taken)]
        self._used = self._taken = 0

    def _allocate(self, size: int) -> Bytes:
        room = max(1, -(-size // _CACHE_LINE)) * _CACHE_LINE
        if not self._blocks or self._used + room > len(self._blocks[-1].bytes):
            self._blocks.append(_Block(room))
            self._used = 0
        start = self._used
        self._used += room
        self._taken += room
        return self._blocks[-1].bytes[start : start + size]


class _Block:
    """Memory that can be given back although layers still have views of it, which they do not read any more.

    Layers refer to their latest input until their next forward: with memory of NumPy's, these references would keep
    the blocks of the first step, which are replaced again and again while the pool grows.
    """

    def __init__(self, size: int) -> None:
        self._memory = private_memory(size)
        self.bytes: Bytes = np.frombuffer(self._memory, dtype=np.uint8, count=size)

    def give_back(self) -> None:
        """Return the memory to the system; the addresses stay reserved until no view is left."""
        self._memory.madvise(MADV_DONTNEED)
