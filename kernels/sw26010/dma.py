"""DMA between main memory and LDM: what a strided transfer costs."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from taihu.kernels.sw26010.machine import CLOCK_HZ, DMA_ISSUE_CYCLES, DMA_TABLE


def bandwidth(block_bytes: int) -> float:
    """Bytes per second of a core group whose CPEs all transfer contiguous blocks of `block_bytes`, strided.

    Between two measured lengths it is interpolated over the logarithm of the length; below the shortest it falls in
    proportion, as every block then costs the same; above the longest it stays.
    """
    shortest, slowest = DMA_TABLE[0]
    if block_bytes <= shortest:
        return slowest * block_bytes / shortest
    place = bisect_right(DMA_TABLE, block_bytes, key=lambda entry: entry[0])
    if place == len(DMA_TABLE):
        return DMA_TABLE[-1][1]
    (low, slow), (high, fast) = DMA_TABLE[place - 1], DMA_TABLE[place]
    return slow + (fast - slow) * math.log(block_bytes / low) / math.log(high / low)


@dataclass(frozen=True)
class Transfer:
    """One request of every CPE that takes part, for strided data.

    Attributes:
        runs: (length in bytes, number) of the contiguous blocks of all CPEs together; neither is 0.
    """

    runs: tuple[tuple[int, int], ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all CPEs together."""
        return sum(block_bytes * blocks for block_bytes, blocks in self.runs)

    def scaled(self, times: int) -> Transfer:
        """The same by so many CPEs."""
        return Transfer(tuple((block_bytes, blocks * times) for block_bytes, blocks in self.runs))

    @property
    def cycles(self) -> int:
        """Cycles from the issue until all data have arrived, while earlier requests hide the memory's latency."""
        if not self.runs:
            return 0
        seconds = sum(block_bytes * blocks / bandwidth(block_bytes) for block_bytes, blocks in self.runs)
        return DMA_ISSUE_CYCLES + math.ceil(seconds * CLOCK_HZ)


def spread(lines: int, length: int, parts: int, itemsize: int) -> Transfer:
    """The transfer of `lines` lines of `length` contiguous elements, each cut into equal runs for `parts` CPEs.

    Args:
        lines: number of lines, 0 or more.
        length: elements of a line.
        parts: how many CPEs share a line; the last run is what is left.
        itemsize: bytes of an element in main memory.
    """
    if lines * length == 0:
        return Transfer(())
    run = -(-length // parts)
    full, rest = divmod(length, run)
    runs = [(run * itemsize, lines * full)]
    if rest:
        runs.append((rest * itemsize, lines))
    return Transfer(tuple(runs))
