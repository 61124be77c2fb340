"""Collective operations on a ring as pure state machines: what to send, and what to do with what arrives.

The arena is cut into as many chunks as there are ranks, and every chunk into segments. A chunk makes 2 (P - 1) hops
from rank to rank: rank r sends chunk (r - h) mod P at hop h to rank r + 1. In the first P - 1 hops the receiver adds
the chunk to its own (reduce-scatter), in the others it takes it over (allgather): docs/methods.md section 2. A
segment goes on as soon as it has been added, so that sending, receiving and adding overlap.

Chunk c is summed in the order of ranks c, c + 1, ..., c - 1 (mod P), whatever arrives first, by one rank; all others
take its bits over. So all ranks hold the same bits, and a rerun gives them again. Chunk c of a group is what server c
of P would own of it (`taihu.core.planner.partition`): merging layers in another way changes no bit either.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final, Literal

from taihu.allreduce.order.operation import Action, Arrival, Segment
from taihu.core.base.errors import FrameError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec, Shard

_SEGMENTS_PER_CHUNK = 8
_SMALLEST_SEGMENT_BYTES = 512 << 10
_LARGEST_SEGMENT_BYTES = 1 << 20
_KNOWN_BUFFERS: Final = 256

Chunks = Sequence[Sequence[FrameSpec]]


class _Hop:
    """The segments of one hop as they arrive, in order."""

    def __init__(self, hop: int, frames: Sequence[FrameSpec]) -> None:
        self._hop = hop
        self._frames = frames
        self._next = 0

    @property
    def missing(self) -> int:
        return len(self._frames) - self._next

    def expected(self, offset: int, count: int) -> Segment | None:
        """The next segment, if it is this one."""
        if not self.missing:
            return None
        frame = self._frames[self._next]
        return Segment(self._hop, frame) if (frame.offset, frame.count) == (offset, count) else None

    def arrive(self, offset: int, count: int) -> Segment:
        frame = self._frames[self._next] if self._next < len(self._frames) else None
        if frame is None or frame.offset != offset or frame.count != count:
            expected = "no more of this hop" if frame is None else f"[{frame.offset}, {frame.offset + frame.count})"
            raise FrameError(f"segment [{offset}, {offset + count}) at hop {self._hop}: expected {expected}")
        self._next += 1
        return Segment(self._hop, frame)


Phase = Literal["both", "reduce-scatter", "allgather"]


def summed_by(rank: int, size: int) -> int:
    """The chunk whose sum rank `rank` completes: at the last hop of the reduce-scatter it comes from P - 1 behind."""
    return (rank + 1) % size


class Ring:
    """Rank `rank`'s part in summing an arena that is cut into `chunks`, one for each rank; see `cut_chunks`.

    The left neighbour's segments of one hop arrive in order; hops may interleave. Of the two phases there may be only
    one: a reduce-scatter leaves each chunk summed on one rank, `summed_by`, from which an allgather brings it to all.
    """

    def __init__(self, rank: int, chunks: Chunks, phase: Phase = "both") -> None:
        self._rank = rank
        self.chunks = chunks
        self._size = len(chunks)
        self._turn = turn = self._size - 1
        self.hops = range(turn if phase == "allgather" else 0, turn if phase == "reduce-scatter" else 2 * turn)
        """The hops that it takes part in."""

    @cached_property
    def _missing(self) -> int:
        # At hop h a rank sends the chunk h ranks behind it and receives the one h + 1 behind.
        return sum(len(self._behind(hop + 1)) for hop in self.hops)

    @cached_property
    def _hops(self) -> dict[int, _Hop]:
        # Sums in shared memory have none.
        return {hop: _Hop(hop, self._behind(hop + 1)) for hop in self.hops}

    @property
    def done(self) -> bool:
        """Whether everything has arrived."""
        return not self._missing

    @property
    def is_whole(self) -> bool:
        """Whether it has both phases."""
        return len(self.hops) == 2 * self._turn

    @property
    def sent_elements(self) -> int:
        """The number of values that this rank sends in all."""
        return sum(frame.count for hop in self.hops for frame in self._behind(hop))

    @property
    def sent_segments(self) -> int:
        """The number of segments that this rank sends in all."""
        return sum(len(self._behind(hop)) for hop in self.hops)

    def first_segments(self) -> list[Segment]:
        """Segments that go before anything has arrived: this rank's own chunk, or the one that it has summed."""
        return [Segment(self.hops.start, frame) for frame in self._behind(self.hops.start)]

    def is_result(self, hop: int) -> bool:
        """Whether what is sent at a hop is complete."""
        return hop >= self._turn

    def replaces(self, hop: int, offset: int, count: int) -> Segment | None:
        """The segment, if it is the next of its hop and replaces the own values."""
        if hop < self._turn or hop not in self._hops:
            return None
        return self._hops[hop].expected(offset, count)

    def arrive(self, hop: int, offset: int, count: int) -> Arrival:
        """Take notice of a segment of the left neighbour.

        Raises:
            FrameError: it is not the next one of its hop. Nothing was changed.
        """
        if hop not in self._hops:
            raise FrameError(
                f"segment at hop {hop}: {self._size} ranks make hops {self.hops.start} to {self.hops.stop - 1}"
            )
        segment = self._hops[hop].arrive(offset, count)
        self._missing -= 1
        forward = Segment(hop + 1, segment.frame) if hop + 1 in self._hops else None
        if hop >= self._turn:
            return Arrival(segment, Action.REPLACE, forward)
        return Arrival(segment, Action.COMPLETE if hop == self._turn - 1 else Action.ADD, forward)

    def _behind(self, ranks: int) -> Sequence[FrameSpec]:
        return self.chunks[(self._rank - ranks) % self._size]


class Broadcast:
    """Rank `rank`'s part in handing `root`'s values on around a ring of `size`, segment by segment in order."""

    def __init__(self, rank: int, size: int, frames: Sequence[FrameSpec], root: int = 0) -> None:
        distance = (rank - root) % size
        self._frames = () if distance else frames
        self._forwards = distance < size - 1
        self._hop = _Hop(distance - 1, frames if distance else ())

    @property
    def done(self) -> bool:
        """Whether everything has arrived."""
        return not self._hop.missing

    def is_result(self, hop: int) -> bool:
        """Everything is."""
        return True

    def first_segments(self) -> list[Segment]:
        """Segments that go before anything has arrived: the root's all, the others' none."""
        return [Segment(0, frame) for frame in self._frames]

    def replaces(self, hop: int, offset: int, count: int) -> Segment | None:
        """The segment, if it is the next one."""
        segment = self._hop.expected(offset, count)
        return segment if segment is not None and segment.hop == hop else None

    def arrive(self, hop: int, offset: int, count: int) -> Arrival:
        """Take notice of a segment of the left neighbour.

        Raises:
            FrameError: it is not the next one. Nothing was changed.
        """
        if self.replaces(hop, offset, count) is None:
            raise FrameError(f"broadcast: segment [{offset}, {offset + count}) at hop {hop} is not the next one")
        segment = self._hop.arrive(offset, count)
        forward = Segment(hop + 1, segment.frame) if self._forwards else None
        return Arrival(segment, Action.REPLACE, forward)


def cut_chunks(layout: Layout, group: Group, size: int, itemsize: int) -> tuple[tuple[FrameSpec, ...], ...]:
    """The chunks of a group of layers for `size` ranks, each cut into segments.

    Segments are small enough that a large chunk is a stream of several, so that adding and updating overlap with
    receiving, but not small: each costs time of its own. Links are as busy with large ones, since a chunk goes on as
    soon as its first segment has been added.

    Args:
        layout: of the arena, in backward order.
        group: layers that are summed together.
        size: number of ranks.
        itemsize: bytes of a value.
    """
    segment = segment_elements(layout, group, size, itemsize)
    return tuple(Shard(layout, size, rank).frames((group,), segment) for rank in range(size))


def segment_elements(layout: Layout, group: Group, size: int, itemsize: int) -> int:
    """The most values of a segment of the chunks that `cut_chunks` makes."""
    elements = layout.offsets[group.last_layer + 1] - layout.offsets[group.first_layer]
    chunk_bytes = elements * itemsize / size
    size_bytes = min(max(chunk_bytes / _SEGMENTS_PER_CHUNK, _SMALLEST_SEGMENT_BYTES), _LARGEST_SEGMENT_BYTES)
    return int(size_bytes) // itemsize


def buffer_layout(elements: int) -> Layout:
    """A layout of one layer, for a buffer that is no model's."""
    return Layout((LayerSpec("buffer", (TensorSpec("values", (elements,)),)),))


@lru_cache(maxsize=_KNOWN_BUFFERS)
def buffer_chunks(elements: int, size: int, itemsize: int) -> tuple[tuple[FrameSpec, ...], ...]:
    """The chunks of a buffer that is no model's, as `cut_chunks` makes them: small ones are summed often."""
    return cut_chunks(buffer_layout(elements), Group(0, 0), size, itemsize)


def summation_order(chunk: int, size: int) -> list[int]:
    """The order of ranks in which the values of a chunk are added."""
    return [(chunk + i) % size for i in range(size)]
