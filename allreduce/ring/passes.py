"""The frames of one rank's pass around a ring, as `kernels.ring_pass` takes them: who sends what, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.planner.partition import slice_bounds

__all__ = ["LARGEST_FRAME_BYTES", "Pass", "flat_pass"]

LARGEST_FRAME_BYTES: Final = 256 << 10
_SMALLEST_FRAME_BYTES: Final = 16 << 10
_FRAMES_PER_CHUNK: Final = 4
_KNOWN_PASSES: Final = 256


@dataclass(frozen=True)
class Pass:
    """A rank's part: what it sends and receives, hop by hop; see `allreduce.ring.schedule`.

    Attributes:
        frames: shape (n, 2), int64: offset and size in bytes. The first `sends` are sent in this order, the last
            `receives` received: at each hop what was received at the one before is sent on.
        sends, receives: numbers of frames.
        added: so many of those received are added, the others replace what is there.
        completed_from: from this one on sums are complete.
    """

    frames: NDArray[np.int64]
    sends: int
    receives: int
    added: int
    completed_from: int

    @property
    def own(self) -> int:
        """The number of frames that are sent before any has come."""
        return len(self.frames) - self.receives


@lru_cache(maxsize=_KNOWN_PASSES)
def flat_pass(rank: int, size: int, count: int, itemsize: int) -> Pass:
    """Rank `rank`'s pass of `size` over one buffer of `count` elements, cut into a chunk for each rank.

    The chunks are those of `allreduce.ring.schedule.cut_chunks`, so that sums have the same bits.
    """
    chunks = [_frames_of(*slice_bounds(count, size, chunk), itemsize) for chunk in range(size)]
    hops = [chunks[(rank - hop) % size] for hop in range(2 * size - 1)]
    lengths = [len(each) for each in hops]
    return Pass(
        np.concatenate(hops),
        sends=sum(lengths[:-1]),
        receives=sum(lengths[1:]),
        added=sum(lengths[1:size]),
        completed_from=sum(lengths[1 : size - 1]),
    )


def _frames_of(start: int, stop: int, itemsize: int) -> NDArray[np.int64]:
    """The frames of one chunk, shape (k, 2)."""
    in_chunk = -(-(stop - start) // _FRAMES_PER_CHUNK)
    most = min(max(in_chunk, _SMALLEST_FRAME_BYTES // itemsize), LARGEST_FRAME_BYTES // itemsize)
    begins = np.arange(start, stop, most, dtype=np.int64)
    return np.stack([begins, np.minimum(begins + most, stop) - begins], axis=1) * itemsize
