"""Memory that dense frames are received in: as much as is under way at once, used again and again."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from taihu.core.system.threads import Lock

__all__ = ["FrameBuffers"]

Array = NDArray[Any]


class FrameBuffers:
    """Arrays that are lent and given back; one that is never given back is freed when nobody refers to it.

    Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: dict[tuple[int, np.dtype[Any]], list[Array]] = defaultdict(list)
        self._lent: WeakValueDictionary[int, Array] = WeakValueDictionary()

    def lend(self, count: int, dtype: DTypeLike) -> Array:
        """An array of shape (count,) with any values."""
        kind = (count, np.dtype(dtype))
        with self._lock:
            array = self._free[kind].pop() if self._free[kind] else np.empty(count, dtype=kind[1])
            self._lent[id(array)] = array
        return array

    def give_back(self, values: Array) -> None:
        """`values`, a lent array or a view of one, will not be used any more; of anything else nothing happens."""
        owner = values if values.base is None else values.base
        with self._lock:
            if isinstance(owner, np.ndarray) and self._lent.pop(id(owner), None) is owner:
                self._free[len(owner), owner.dtype].append(owner)

    def free_all(self) -> None:
        """Keep nothing that is not lent: frames have other sizes from now on."""
        with self._lock:
            self._free.clear()
