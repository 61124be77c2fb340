"""The ring against NumPy: what every rank ends with, whatever the order in which segments arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.allreduce.order.operation import Action, Segment
from taihu.allreduce.ring.schedule import Broadcast, Ring, buffer_layout, cut_chunks, summation_order
from taihu.core.base.errors import FrameError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec, Shard, slice_bounds

Values = NDArray[np.float32]
quick = settings(deadline=None, max_examples=200)


def layout_of(sizes: Sequence[int]) -> Layout:
    return Layout(tuple(LayerSpec(f"layer{i}", (TensorSpec("weight", (size,)),)) for i, size in enumerate(sizes)))


def reference_sum(arenas: list[Values], sizes: Sequence[int]) -> Values:
    """Slice c of every layer added up in the order of ranks c, c + 1, ...: plain loops."""
    size, total, begin = len(arenas), np.zeros_like(arenas[0]), 0
    for elements in sizes:
        for chunk in range(size):
            start, stop = (begin + bound for bound in slice_bounds(elements, size, chunk))
            order = summation_order(chunk, size)
            assert sorted(order) == list(range(size))
            assert order[0] == chunk
            part = arenas[order[0]][start:stop].copy()
            for rank in order[1:]:
                part = arenas[rank][start:stop] + part
            total[start:stop] = part
        begin += elements
    return total


def run(schedules: Sequence[Ring | Broadcast], arenas: list[Values], random: Random) -> list[int]:
    """Let the ranks exchange over links that keep their order, one step of a random rank at a time; counts sends."""
    size = len(arenas)
    links: list[deque[tuple[Segment, list[Values]]]] = [deque() for _ in range(size)]
    sent = [0] * size

    def views(rank: int, segment: Segment) -> list[Values]:
        return [arenas[rank][piece.start : piece.stop] for piece in segment.frame.pieces]

    def send(rank: int, segment: Segment) -> None:
        links[rank].append((segment, [view.copy() for view in views(rank, segment)]))
        sent[rank] += segment.frame.count

    for rank, schedule in enumerate(schedules):
        for segment in schedule.first_segments() if size > 1 else ():
            send(rank, segment)
    while any(links):
        sender = random.choice([rank for rank in range(size) if links[rank]])
        segment, values = links[sender].popleft()
        receiver = (sender + 1) % size
        schedule, where = schedules[receiver], (segment.hop, segment.frame.offset, segment.frame.count)
        assert not schedule.done
        place = schedule.replaces(*where)
        arrival = schedule.arrive(*where)
        assert arrival.segment == segment
        assert (place is not None) == (arrival.action is Action.REPLACE)
        assert schedules[sender].is_result(segment.hop) == (arrival.action is Action.REPLACE)
        for own, part in zip(views(receiver, segment), values, strict=True):
            own[:] = part if arrival.action is Action.REPLACE else own + part
        if arrival.forward is not None:
            send(receiver, arrival.forward)
    assert all(schedule.done for schedule in schedules)
    return sent


def chunks_of(layout: Layout, groups: Sequence[Group], size: int, segment: int) -> list[list[tuple[FrameSpec, ...]]]:
    return [[Shard(layout, size, rank).frames((group,), segment) for rank in range(size)] for group in groups]


@quick
@given(
    st.integers(1, 9),
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
    st.integers(1, 20),
    st.data(),
    st.randoms(),
)
def test_every_rank_ends_with_the_sum_in_the_order_of_the_ring_however_layers_are_merged(
    size: int, sizes: list[int], segment: int, data: st.DataObject, random: Random
) -> None:
    rng = np.random.default_rng(random.randrange(2**32))
    arenas = [rng.standard_normal(sum(sizes), dtype=np.float32) for _ in range(size)]
    expected = reference_sum(arenas, sizes)
    cut = data.draw(st.integers(0, len(sizes) - 1))
    groups = [Group(0, cut)] + ([Group(cut + 1, len(sizes) - 1)] if cut + 1 < len(sizes) else [])
    layout = layout_of(sizes)
    for chunks in chunks_of(layout, groups, size, segment):
        sent = run([Ring(rank, chunks) for rank in range(size)], arenas, random)
        # Each rank sends 2 (P - 1) of the P chunks.
        elements = [sum(frame.count for frame in chunk) for chunk in chunks]
        for rank in range(size):
            assert sent[rank] == sum(elements[(rank - hop) % size] for hop in range(2 * (size - 1)))
    for arena in arenas:
        assert arena.tobytes() == expected.tobytes()


@quick
@given(st.integers(1, 9), st.integers(0, 60), st.integers(1, 20), st.randoms())
def test_a_broadcast_hands_the_roots_values_on(size: int, elements: int, segment: int, random: Random) -> None:
    root = random.randrange(size)
    arenas = [np.full(elements, float(rank), dtype=np.float32) for rank in range(size)]
    frames = Shard(layout_of([elements]), 1, 0).state_frames(segment)
    sent = run([Broadcast(rank, size, frames, root) for rank in range(size)], arenas, random)
    assert all((arena == root).all() for arena in arenas)
    assert sent == [elements if (rank - root) % size < size - 1 else 0 for rank in range(size)]


def ring_of_three() -> Ring:
    """Rank 1 of 3; the chunk of rank 0, which arrives at hop 0, is [0, 4) in segments of 2."""
    return Ring(1, chunks_of(layout_of([12]), [Group(0, 0)], 3, 2)[0])


@pytest.mark.parametrize(
    ("hop", "offset", "count", "message"),
    [
        (4, 0, 2, "segment at hop 4: 3 ranks make hops 0 to 3"),
        (-1, 0, 2, "segment at hop -1"),
        (0, 2, 2, r"segment \[2, 4\) at hop 0: expected \[0, 2\)"),
        (0, 0, 3, r"segment \[0, 3\) at hop 0: expected \[0, 2\)"),
        (0, 4, 2, r"segment \[4, 6\) at hop 0: expected \[0, 2\)"),
    ],
)
def test_what_is_not_expected_is_refused_and_changes_nothing(hop: int, offset: int, count: int, message: str) -> None:
    ring = ring_of_three()
    with pytest.raises(FrameError, match=message):
        ring.arrive(hop, offset, count)
    forward = ring.arrive(0, 0, 2).forward
    assert forward is not None
    assert (forward.hop, forward.frame.offset, forward.frame.count) == (1, 0, 2)


def test_a_segment_that_comes_twice_is_refused() -> None:
    ring = ring_of_three()
    ring.arrive(0, 0, 2)
    with pytest.raises(FrameError, match=r"expected \[2, 4\)"):
        ring.arrive(0, 0, 2)
    ring.arrive(0, 2, 2)
    with pytest.raises(FrameError, match="expected no more of this hop"):
        ring.arrive(0, 2, 2)


def test_only_a_segment_that_replaces_has_a_place() -> None:
    ring = ring_of_three()
    assert ring.replaces(0, 0, 2) is None
    assert ring.replaces(1, 0, 2) is None
    place = ring.replaces(2, 0, 2)
    assert place is not None
    assert [(piece.start, piece.stop) for piece in place.frame.pieces] == [(4, 6)]
    assert ring.replaces(2, 2, 2) is None
    assert ring.replaces(4, 0, 2) is None


def test_a_broadcast_takes_its_segments_in_order() -> None:
    receiver = Broadcast(2, 3, Shard(layout_of([5]), 1, 0).state_frames(2))
    sizes = [(frame.offset, frame.count) for frame in Shard(layout_of([5]), 1, 0).state_frames(2)]
    for hop, offset, count in ((0, *sizes[0]), (1, *sizes[1]), (1, 0, 5)):
        with pytest.raises(FrameError, match="is not the next one"):
            receiver.arrive(hop, offset, count)
    for offset, count in sizes:
        assert receiver.arrive(1, offset, count).forward is None
    assert receiver.done
    with pytest.raises(FrameError):
        receiver.arrive(1, *sizes[-1])


@pytest.mark.parametrize(
    ("elements", "size", "itemsize", "segment"),
    [(100, 1, 4, 131_072), (100, 4, 8, 65_536), (10**8, 2, 4, 262_144), (3_000_000, 2, 4, 187_500)],
)
def test_segments_are_a_stream_of_many_but_not_tiny(elements: int, size: int, itemsize: int, segment: int) -> None:
    chunks = cut_chunks(buffer_layout(elements), Group(0, 0), size, itemsize)
    assert sum(frame.count for chunk in chunks for frame in chunk) == elements
    for chunk in chunks:
        assert max(frame.count for frame in chunk) <= segment
        assert len(chunk) == -(-sum(frame.count for frame in chunk) // segment)
