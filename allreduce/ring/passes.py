"""The frames of one rank's pass around a ring, as `kernels.ring_pass` takes them: who sends what, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.ring.schedule import Chunks
from taihu.core.planner.partition import slice_bounds

LARGEST_FRAME_BYTES: Final = 512 << 10
_SMALLEST_FRAME_BYTES: Final = 16 << 10
_FRAMES_PER_CHUNK: Final = 4
_KNOWN_PASSES: Final = 256

Range = tuple[int, int]


@dataclass(frozen=True)
class Pass:
    """A rank's part: what it sends and receives, hop by hop; see `taihu.allreduce.ring.schedule`.

    Attributes:
        pieces: shape (m, 2), int64: offset and size in bytes of ranges of memory.
        frames: shape (n, 3), int64: each frame's first piece, the one after its last, and its size in bytes. The
            first `sends` are sent in this order, the last `receives` received: at each hop what was received at the
            one before is sent on.
        sends, receives: numbers of frames.
        added: so many of those received are added, the others replace what is there.
        completed_from: from this one on sums are complete.
        stamp: 32 bits of what all ranks have alike: which elements of how many bytes are in which frame.
    """

    pieces: NDArray[np.int64]
    frames: NDArray[np.int64]
    sends: int
    receives: int
    added: int
    completed_from: int
    stamp: int

    @property
    def own(self) -> int:
        """The number of frames that are sent before any has come."""
        return len(self.frames) - self.receives

    @property
    def sent_bytes(self) -> int:
        """Bytes of values that are sent."""
        return int(self.frames[: self.sends, 2].sum())

    @property
    def received_bytes(self) -> int:
        """Bytes of values that are received."""
        return int(self.frames[self.own :, 2].sum())


@lru_cache(maxsize=_KNOWN_PASSES)
def flat_pass(rank: int, size: int, count: int, itemsize: int) -> Pass:
    """Rank `rank`'s pass of `size` over one buffer of `count` elements, cut into a chunk for each rank.

    The chunks are those of `taihu.allreduce.ring.schedule.cut_chunks`, so that sums have the same bits.
    """
    return _pass(rank, [[slice_bounds(count, size, chunk)] for chunk in range(size)], itemsize)


def pass_of(rank: int, chunks: Chunks, itemsize: int) -> Pass:
    """Rank `rank`'s pass over the chunks of a group, which are ranges of an arena."""
    frames = [chain.from_iterable(frame.pieces for frame in chunk) for chunk in chunks]
    return _pass(rank, [[(piece.start, piece.stop) for piece in pieces] for pieces in frames], itemsize)


def _pass(rank: int, chunks: Sequence[Sequence[Range]], itemsize: int) -> Pass:
    size = len(chunks)
    cut = [list(_frames_of(chunk, itemsize)) for chunk in chunks]
    hops = [cut[(rank - hop) % size] for hop in range(2 * size - 1)]
    frames = [frame for hop in hops for frame in hop]
    stops = np.cumsum([0, *map(len, frames)])
    pieces = np.array(list(chain.from_iterable(frames)), dtype=np.int64).reshape(-1, 2)
    pieces[:, 1] -= pieces[:, 0]
    pieces *= itemsize
    taken = np.concatenate([[0], np.cumsum(pieces[:, 1])])
    lengths = [len(hop) for hop in hops]
    return Pass(
        pieces,
        np.stack([stops[:-1], stops[1:], taken[stops[1:]] - taken[stops[:-1]]], axis=1),
        sends=sum(lengths[:-1]),
        receives=sum(lengths[1:]),
        added=sum(lengths[1:size]),
        completed_from=sum(lengths[1 : size - 1]),
        stamp=crc32(repr((itemsize, cut)).encode()),
    )


def _frames_of(chunk: Sequence[Range], itemsize: int) -> Iterator[list[Range]]:
    """The frames of one chunk: each of as many pieces as make up its size; the last may be smaller."""
    count = sum(stop - start for start, stop in chunk)
    in_frame = max(-(-count // _FRAMES_PER_CHUNK), _SMALLEST_FRAME_BYTES // itemsize)
    room = most = min(in_frame, LARGEST_FRAME_BYTES // itemsize)
    frame: list[Range] = []
    for start, stop in chunk:
        at = start
        while at < stop:
            taken = min(stop - at, room)
            frame.append((at, at + taken))
            at, room = at + taken, room - taken
            if not room:
                yield frame
                frame, room = [], most
    if frame:
        yield frame
