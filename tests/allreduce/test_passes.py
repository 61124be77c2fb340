"""The frames of a pass around a ring: neighbours agree on them, and they do what the ring of other sums does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.allreduce.order.operation import Action, Segment
from taihu.allreduce.ring.passes import LARGEST_FRAME_BYTES, Pass, flat_pass, pass_of
from taihu.allreduce.ring.schedule import Chunks, Ring, buffer_layout, cut_chunks
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import slice_bounds

Range = tuple[int, int]
Place = tuple[int, int]
Labelled = tuple[Any, int, int]

places = st.integers(2, 5).flatmap(lambda size: st.tuples(st.integers(0, size - 1), st.just(size)))
itemsizes = st.sampled_from([2, 4, 8])
# Chunks of nothing, of one smallest frame, of several frames, and of some that are as large as frames may be.
counts = st.one_of(st.integers(0, 12), st.integers(0, 100_000), st.integers(0, 3_000_000))


def frames_of(steps: Pass, itemsize: int) -> list[list[Range]]:
    """Each frame's ranges of values; what the pass says of their sizes holds."""
    pieces = [(begin // itemsize, (begin + length) // itemsize) for begin, length in steps.pieces.tolist()]
    frames = [pieces[first:last] for first, last, _ in steps.frames.tolist()]
    assert steps.frames[:, 2].tolist() == [sum(stop - start for start, stop in each) * itemsize for each in frames]
    assert not (steps.pieces % itemsize).any()
    return frames


def own_frames(rank: int, size: int, count: int, itemsize: int) -> list[list[Range]]:
    steps = flat_pass(rank, size, count, itemsize)
    return frames_of(steps, itemsize)[: steps.own]


@settings(max_examples=200)
@given(places, counts, itemsizes)
def test_the_own_frames_of_a_rank_tile_its_chunk(place: Place, count: int, itemsize: int) -> None:
    """Each is one range, which needs no copy."""
    rank, size = place
    at, end = slice_bounds(count, size, rank)
    for ((start, stop),) in own_frames(rank, size, count, itemsize):
        assert start == at
        assert 0 < (stop - start) * itemsize <= LARGEST_FRAME_BYTES
        at = stop
    assert at == end


@settings(max_examples=200)
@given(places, counts, itemsizes)
def test_what_a_rank_sends_is_what_its_right_neighbour_receives(place: Place, count: int, itemsize: int) -> None:
    rank, size = place
    sender, receiver = (flat_pass(each % size, size, count, itemsize) for each in (rank, rank + 1))
    assert sender.sends == receiver.receives
    sent, received = frames_of(sender, itemsize)[: sender.sends], frames_of(receiver, itemsize)[receiver.own :]
    assert sent == received
    assert sender.sent_bytes == receiver.received_bytes
    assert sender.sent_bytes == itemsize * sum(stop - start for frame in sent for start, stop in frame)


@settings(max_examples=200)
@given(places, counts, itemsizes)
def test_frames_come_chunk_by_chunk_from_further_and_further_behind(place: Place, count: int, itemsize: int) -> None:
    rank, size = place
    steps = flat_pass(rank, size, count, itemsize)
    ranks = [(rank - hop) % size for hop in range(1, 2 * size - 1)]
    expected = [frame for each in ranks for frame in own_frames(each, size, count, itemsize)]
    assert frames_of(steps, itemsize)[steps.own :] == expected


@settings(max_examples=100)
@given(places, counts, itemsizes)
def test_large_chunks_are_streams_of_frames_that_are_not_small(place: Place, count: int, itemsize: int) -> None:
    """Adding overlaps with receiving then; frames of a few bytes would cost more than they carry."""
    rank, size = place
    start, stop = slice_bounds(count, size, rank)
    sizes = [(stop - start) * itemsize for ((start, stop),) in own_frames(rank, size, count, itemsize)]
    assert len(sizes) >= 4 or (stop - start) * itemsize < 64 << 10
    assert all(each >= 16 << 10 for each in sizes[:-1])


def on_a_ring(rank: int, chunks: Chunks) -> tuple[list[Segment], list[tuple[Action, Segment]]]:
    """The segments that `rank` sends and what it does with those that it receives, as the other sums go round."""
    rings = [Ring(each, chunks) for each in range(len(chunks))]
    links = [deque(ring.first_segments()) for ring in rings]
    sent = list(links[rank])
    received: list[tuple[Action, Segment]] = []
    while any(links):
        for sender, link in enumerate(links):
            receiver = (sender + 1) % len(chunks)
            for segment in [link.popleft() for _ in range(len(link))]:
                arrival = rings[receiver].arrive(segment.hop, segment.frame.offset, segment.frame.count)
                forward = [] if arrival.forward is None else [arrival.forward]
                links[receiver].extend(forward)
                if receiver == rank:
                    received.append((arrival.action, segment))
                    sent += forward
    return sent, received


def joined(ranges: Iterable[Labelled]) -> list[Labelled]:
    """The ranges, but those that go on where the one before ended joined: what is left is the order of elements."""
    found: list[Labelled] = []
    for label, start, stop in ranges:
        if found and found[-1][0] == label and found[-1][2] == start:
            found[-1] = (label, found[-1][1], stop)
        elif start < stop:
            found.append((label, start, stop))
    return found


def labelled(label: Any, segment: Segment) -> list[Labelled]:
    return [(label, piece.start, piece.stop) for piece in segment.frame.pieces]


def action_on(steps: Pass, frame: int) -> Action:
    """The action that a kernel takes on a frame that it receives."""
    if frame >= steps.added:
        return Action.REPLACE
    return Action.COMPLETE if frame >= steps.completed_from else Action.ADD


def check_against_ring(rank: int, chunks: Chunks, steps: Pass, itemsize: int) -> None:
    """The same elements go in the same order, and the same is done to those that come: sums have the same bits."""
    sent, received = on_a_ring(rank, chunks)
    frames = frames_of(steps, itemsize)
    sends = joined(("send", *piece) for frame in frames[: steps.sends] for piece in frame)
    assert sends == joined(each for segment in sent for each in labelled("send", segment))
    actions = [(action_on(steps, index), frame) for index, frame in enumerate(frames[steps.own :])]
    receives = joined((action, *piece) for action, frame in actions for piece in frame)
    assert receives == joined(each for action, segment in received for each in labelled(action, segment))
    assert 0 <= steps.completed_from <= steps.added <= steps.receives == len(steps.frames) - steps.own


@settings(max_examples=150)
@given(places, st.one_of(st.integers(0, 40), st.integers(0, 600_000)), itemsizes)
def test_a_pass_does_what_the_ring_of_other_sums_does(place: Place, count: int, itemsize: int) -> None:
    rank, size = place
    chunks = cut_chunks(buffer_layout(count), Group(0, 0), size, itemsize)
    check_against_ring(rank, chunks, flat_pass(rank, size, count, itemsize), itemsize)


def chunks_of_layers(sizes: list[int], first: int, last: int, size: int, itemsize: int) -> Chunks:
    """The chunks of layers `first` to `last` of an arena."""
    layout = Layout(tuple(LayerSpec(f"layer{i}", (TensorSpec("weight", (each,)),)) for i, each in enumerate(sizes)))
    return cut_chunks(layout, Group(first, last), size, itemsize)


layers = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 300_000)), min_size=1, max_size=6)


@settings(max_examples=150)
@given(places, layers, itemsizes, st.data())
def test_a_pass_over_a_group_of_layers_does_what_their_ring_does(
    place: Place, sizes: list[int], itemsize: int, data: st.DataObject
) -> None:
    rank, size = place
    first = data.draw(st.integers(0, len(sizes) - 1))
    last = data.draw(st.integers(first, len(sizes) - 1))
    chunks = chunks_of_layers(sizes, first, last, size, itemsize)
    check_against_ring(rank, chunks, pass_of(rank, chunks, itemsize), itemsize)


@settings(max_examples=150)
@given(places, layers, itemsizes)
def test_neighbours_cut_the_chunks_of_layers_alike(place: Place, sizes: list[int], itemsize: int) -> None:
    rank, size = place
    chunks = chunks_of_layers(sizes, 0, len(sizes) - 1, size, itemsize)
    sender, receiver = (pass_of(each % size, chunks, itemsize) for each in (rank, rank + 1))
    sent = frames_of(sender, itemsize)[: sender.sends]
    assert sent == frames_of(receiver, itemsize)[receiver.own :]
    for frame in sent:
        assert all(start < stop for start, stop in frame)
        assert 0 < sum(stop - start for start, stop in frame) * itemsize <= LARGEST_FRAME_BYTES


@pytest.mark.parametrize("size", [2, 3, 5])
def test_nothing_is_sent_of_no_values(size: int) -> None:
    for rank in range(size):
        steps = flat_pass(rank, size, 0, 4)
        assert (len(steps.frames), steps.sends, steps.receives, steps.added, steps.own) == (0, 0, 0, 0, 0)
