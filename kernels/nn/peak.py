"""The speed of a processor's multipliers: the floor under every product."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel
from taihu.kernels.nn.filters import TILE_ROWS, padded_filters
from taihu.kernels.nn.register_tile import window_tile

_DEPTH: Final = 128
_TILES: Final = 20_000
_tile = window_tile(TILE_ROWS, 2)


@kernel
def _repeat(x: NDArray[Any], weight: NDArray[Any], y: NDArray[Any], tiles: int) -> None:
    offsets = np.arange(TILE_ROWS) * _DEPTH
    start = np.zeros(y.size // TILE_ROWS, y.dtype)
    for _ in range(tiles):
        _tile(x, offsets, 0, 0, 1, 0, _DEPTH, weight, 0, 0, start, y, 0, start.size)


def multiply_add_rate(rounds: int = 10) -> float:
    """Fp32 multiplications and additions per second of one thread, with all factors in the first-level cache.

    The best of `rounds` rounds of some milliseconds.
    """
    filters = 2 * padded_filters(1, np.float32)
    x, weight = np.ones(TILE_ROWS * _DEPTH, np.float32), np.ones(_DEPTH * filters, np.float32)
    y = np.empty(TILE_ROWS * filters, np.float32)
    _repeat(x, weight, y, 1)
    best = float("inf")
    for _ in range(rounds):
        # Of the thread: others on the machine do not count.
        begin = time.thread_time()
        _repeat(x, weight, y, _TILES)
        best = min(best, time.thread_time() - begin)
    return 2 * _TILES * TILE_ROWS * _DEPTH * filters / best
