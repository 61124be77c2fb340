"""The part of the arena that each server owns, and the frames that a group's part is cut into.

Every layer is cut into S equal ranges, one for each server (ZeRO's partition, docs/methods.md section 5): load is
balanced for every group, and the partition does not move when the plan does. A server's own arena is the
concatenation of its slices in the same backward order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from taihu.core.model.layout import Layout
from taihu.core.planner.groups import Group

# The largest frame that fits into a payload of 4 MiB even when every value is kept, with a bitmap or denser sections.
SPARSE_FRAME_ELEMENTS: Final = 1_000_000


@dataclass(frozen=True)
class Piece:
    """A range of the whole arena: elements [start, stop)."""

    start: int
    stop: int


Values = TypeVar("Values", bound=np.generic)


@dataclass(frozen=True)
class FrameSpec:
    """One frame of a group for one server.

    It covers elements [offset, offset + count) of the server's arena; `pieces` says which ranges of a worker's
    arena these are, in order.
    """

    group: int
    offset: int
    count: int
    pieces: tuple[Piece, ...]

    @cached_property
    def arena_bounds(self) -> NDArray[np.int64]:
        """Shape (pieces, 2): the pieces in a worker's arena."""
        return np.array([(piece.start, piece.stop) for piece in self.pieces], dtype=np.int64).reshape(-1, 2)

    @cached_property
    def shard_bounds(self) -> NDArray[np.int64]:
        """Shape (pieces, 2): the same pieces in the server's arena."""
        sizes = np.diff(self.arena_bounds).ravel()
        stops = self.offset + np.cumsum(sizes)
        return np.stack([stops - sizes, stops], axis=1)

    @cached_property
    def ranges(self) -> tuple[Piece, ...]:
        """The pieces, neighbours joined."""
        joined: list[Piece] = []
        for piece in self.pieces:
            if joined and joined[-1].stop == piece.start:
                joined[-1] = Piece(joined[-1].start, piece.stop)
            else:
                joined.append(piece)
        return tuple(joined)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """The same, to take views of a worker's arena by."""
        return tuple(slice(piece.start, piece.stop) for piece in self.ranges)

    def views(self, arena: NDArray[Values]) -> list[NDArray[Values]]:
        """The ranges of a worker's arena, shape (elements,), that the frame covers, in order."""
        return list(map(arena.__getitem__, self.slices))


def slice_bounds(elements: int, parts: int, index: int) -> tuple[int, int]:
    """Range `index` of `elements` values cut into `parts` ranges whose lengths differ by one at most."""
    return elements * index // parts, elements * (index + 1) // parts


def all_bounds(elements: int, parts: int) -> tuple[int, ...]:
    """Starts of the ranges of `slice_bounds`, and `elements`: one more than there are parts."""
    return (*(slice_bounds(elements, parts, index)[0] for index in range(parts)), elements)


class Shard:
    """The part of a layout that server `index` of `servers` owns.

    `offsets[i]` is where the slice of layer i begins in the server's arena; `elements` is its size.
    """

    def __init__(self, layout: Layout, servers: int, index: int) -> None:
        self.index = index
        self._slices: list[Piece] = []
        self.offsets = [0]
        for layer, begin in zip(layout.layers, layout.offsets, strict=False):
            start, stop = slice_bounds(layer.elements, servers, index)
            self._slices.append(Piece(begin + start, begin + stop))
            self.offsets.append(self.offsets[-1] + stop - start)

    @property
    def elements(self) -> int:
        """Number of values that this server owns."""
        return self.offsets[-1]

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Shape (layers, 2): the ranges of the whole arena that this server owns, in the order of its own."""
        return np.array([(piece.start, piece.stop) for piece in self._slices], dtype=np.int64).reshape(-1, 2)

    def frames(self, groups: Sequence[Group], frame_elements: int) -> tuple[FrameSpec, ...]:
        """Cut every group's part of this shard into frames of at most `frame_elements`, in backward order.

        The frames of a group differ in size by one element at most; a group of which this server owns nothing has
        none.
        """
        return tuple(
            self._frame(number, start, stop)
            for number, group in enumerate(groups)
            for start, stop in self._cuts(group, frame_elements)
        )

    def state_frames(self, frame_elements: int) -> tuple[FrameSpec, ...]:
        """The whole shard in frames, whatever the plan is: for initial parameters and for reading them back."""
        return self.frames((Group(0, len(self._slices) - 1),), frame_elements)

    def _cuts(self, group: Group, frame_elements: int) -> Iterator[tuple[int, int]]:
        begin, end = self.offsets[group.first_layer], self.offsets[group.last_layer + 1]
        parts = -(-(end - begin) // frame_elements)
        for part in range(parts):
            start, stop = slice_bounds(end - begin, parts, part)
            yield begin + start, begin + stop

    def _frame(self, group: int, start: int, stop: int) -> FrameSpec:
        pieces = []
        for piece, begin in zip(self._slices, self.offsets, strict=False):
            low, high = max(start, begin), min(stop, begin + piece.stop - piece.start)
            if low < high:
                pieces.append(Piece(piece.start + low - begin, piece.start + high - begin))
        return FrameSpec(group, start, stop - start, tuple(pieces))


class Framing:
    """The frames of one plan for one server, by group and by offset in the server's arena."""

    def __init__(self, shard: Shard, groups: Sequence[Group], frame_elements: int) -> None:
        self.frames = shard.frames(groups, frame_elements)
        by_group: list[list[FrameSpec]] = [[] for _ in groups]
        for frame in self.frames:
            by_group[frame.group].append(frame)
        self.by_group = tuple(map(tuple, by_group))
        self.by_offset = {frame.offset: frame for frame in self.frames}

    @property
    def largest(self) -> int:
        """Elements of the largest frame; 0 without frames."""
        return max((frame.count for frame in self.frames), default=0)
