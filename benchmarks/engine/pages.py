"""The cost of memory that is given back and taken again: `python -m benchmarks pages`.

Seconds to write 400 MB, by pages of 4 KiB and by huge ones: when they are there, and after `MADV_DONTNEED`.
"""

from __future__ import annotations

import mmap
import time

import numpy as np

__all__ = ["measure"]

_BYTES = 400 << 20
_ROUNDS = 3


def measure(*, huge: bool) -> tuple[float, float]:
    """The best of three: pages that are there, and pages that come anew."""
    memory = mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        memory.madvise(mmap.MADV_HUGEPAGE)
    values = np.frombuffer(memory, dtype=np.float32)
    values[:] = 1.0
    there, anew = [], []
    for _ in range(_ROUNDS):
        there.append(_write(values))
        memory.madvise(mmap.MADV_DONTNEED)
        anew.append(_write(values))
    return min(there), min(anew)


def _write(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    start = time.perf_counter()
    values[:] = 1.0
    return time.perf_counter() - start


def main() -> None:
    """Measure both."""
    for huge in (False, True):
        there, anew = measure(huge=huge)
        print(
            f"{'huge' if huge else 'small'} pages: {there:.3f} s where they are there, {anew:.3f} s where they come"
        )


if __name__ == "__main__":
    main()
