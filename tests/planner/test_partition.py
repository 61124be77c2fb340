"""The partition: every value belongs to one frame of one server, and load is balanced in every group."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group, plan_groups
from taihu.core.planner.partition import FrameSpec, Framing, Shard, all_bounds, slice_bounds
from taihu.worker.exchange.base.updates import joined

quick = settings(deadline=None)

LAYOUTS = st.lists(st.integers(0, 60), min_size=1, max_size=8).map(
    lambda sizes: Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (n,)),)) for i, n in enumerate(sizes)))
)
SERVERS = st.integers(1, 7)
FRAME_ELEMENTS = st.integers(1, 30) | st.just(10**6)
Grouping = tuple[Layout, tuple[Group, ...]]


@st.composite
def groupings(draw: st.DrawFn) -> Grouping:
    layout = draw(LAYOUTS)
    layers = len(layout.layers)
    cuts = sorted(draw(st.sets(st.integers(1, layers - 1)))) if layers > 1 else []
    bounds = [0, *cuts, layers]
    return layout, tuple(Group(a, b - 1) for a, b in pairwise(bounds))


def all_frames(grouping: Grouping, servers: int, size: int) -> list[tuple[FrameSpec, ...]]:
    layout, groups = grouping
    return [Shard(layout, servers, index).frames(groups, size) for index in range(servers)]


def arena_positions(frame: FrameSpec) -> list[int]:
    """The elements of a worker's arena that a frame carries, in order."""
    return [position for piece in frame.pieces for position in range(piece.start, piece.stop)]


def owned_positions(layout: Layout, servers: int, index: int) -> list[int]:
    """By the definition: of every layer the elements whose place in it, scaled to the servers, is this server's."""
    return [
        begin + element
        for layer, begin in zip(layout.layers, layout.offsets, strict=False)
        for element in range(layer.elements)
        if layer.elements * index // servers <= element < layer.elements * (index + 1) // servers
    ]


@quick
@given(groupings(), SERVERS, FRAME_ELEMENTS, st.data())
def test_joined_ranges_are_the_elements_of_their_frames(
    grouping: Grouping, servers: int, size: int, data: st.DataObject
) -> None:
    """Some frames or all of a group, in any order; all are one range."""
    for group in range(len(grouping[1])):
        frames = [frame for shard in all_frames(grouping, servers, size) for frame in shard if frame.group == group]
        some = data.draw(st.lists(st.sampled_from(frames), unique=True) if frames else st.just([]))
        found = [element for piece in joined(some) for element in range(piece.start, piece.stop)]
        assert sorted(found) == sorted(element for frame in some for element in arena_positions(frame))
        assert len(joined(data.draw(st.permutations(frames)))) <= 1


@quick
@given(st.integers(0, 10**12), st.integers(1, 1000))
def test_ranges_follow_one_another_and_differ_by_one_at_most(elements: int, parts: int) -> None:
    bounds = [slice_bounds(elements, parts, index) for index in range(parts)]
    assert (bounds[0][0], bounds[-1][1]) == (0, elements)
    assert all_bounds(elements, parts) == (*(start for start, _ in bounds), elements)
    assert all(left[1] == right[0] for left, right in pairwise(bounds))
    assert {stop - start for start, stop in bounds} <= {elements // parts, -(-elements // parts)}


@quick
@given(groupings(), SERVERS, FRAME_ELEMENTS)
def test_every_value_is_in_one_frame_of_its_own_group(grouping: Grouping, servers: int, frame_elements: int) -> None:
    layout, groups = grouping
    owners = np.zeros(layout.elements, dtype=int)
    for frame in (frame for frames in all_frames(grouping, servers, frame_elements) for frame in frames):
        start = layout.offsets[groups[frame.group].first_layer]
        stop = layout.offsets[groups[frame.group].last_layer + 1]
        positions = arena_positions(frame)
        assert 0 < frame.count == len(positions) <= frame_elements
        assert start <= min(positions)
        assert max(positions) < stop
        np.add.at(owners, positions, 1)
    assert (owners == 1).all()


@quick
@given(groupings(), SERVERS, FRAME_ELEMENTS)
def test_a_servers_frames_cover_its_arena_one_after_another(
    grouping: Grouping, servers: int, frame_elements: int
) -> None:
    for index, frames in enumerate(all_frames(grouping, servers, frame_elements)):
        following = 0
        for frame in frames:
            assert frame.offset == following
            following += frame.count
        assert following == Shard(grouping[0], servers, index).elements


@quick
@given(groupings(), SERVERS, FRAME_ELEMENTS)
def test_the_frames_carry_the_servers_slices_in_backward_order(
    grouping: Grouping, servers: int, frame_elements: int
) -> None:
    """Whatever groups and frame size are: value i of a server's arena is always the same value of the model."""
    layout, _ = grouping
    for index, frames in enumerate(all_frames(grouping, servers, frame_elements)):
        carried = [position for frame in frames for position in arena_positions(frame)]
        assert carried == owned_positions(layout, servers, index)


@quick
@given(LAYOUTS, SERVERS)
def test_the_partition_does_not_move_when_the_plan_does(layout: Layout, servers: int) -> None:
    plans = [plan_groups(layout, plan) for plan in ("per-layer", "single", "bucket:100B")]
    carried = [
        [
            [position for frame in frames for position in arena_positions(frame)]
            for frames in all_frames((layout, groups), servers, 7)
        ]
        for groups in plans
    ]
    assert carried[0] == carried[1] == carried[2]


@quick
@given(groupings(), SERVERS)
def test_load_is_balanced_in_every_layer_and_group(grouping: Grouping, servers: int) -> None:
    layout, groups = grouping
    shards = [Shard(layout, servers, index) for index in range(servers)]
    assert sum(shard.elements for shard in shards) == layout.elements
    for first, last in [(i, i) for i in range(len(layout.layers))] + [(g.first_layer, g.last_layer) for g in groups]:
        sizes = [shard.offsets[last + 1] - shard.offsets[first] for shard in shards]
        assert max(sizes) - min(sizes) <= last - first + 1


@quick
@given(groupings(), SERVERS, FRAME_ELEMENTS)
def test_a_groups_frames_are_as_few_as_possible_and_equal(
    grouping: Grouping, servers: int, frame_elements: int
) -> None:
    layout, groups = grouping
    for index, frames in enumerate(all_frames(grouping, servers, frame_elements)):
        shard = Shard(layout, servers, index)
        for number, group in enumerate(groups):
            counts = [frame.count for frame in frames if frame.group == number]
            share = shard.offsets[group.last_layer + 1] - shard.offsets[group.first_layer]
            assert len(counts) == -(-share // frame_elements)
            assert not counts or max(counts) - min(counts) <= 1


@quick
@given(groupings(), SERVERS, FRAME_ELEMENTS)
def test_arrays_and_views_of_a_frame_are_its_pieces(grouping: Grouping, servers: int, frame_elements: int) -> None:
    arena = np.arange(grouping[0].elements)
    for frames in all_frames(grouping, servers, frame_elements):
        for frame in frames:
            assert frame.arena_bounds.shape == frame.shard_bounds.shape == (len(frame.pieces), 2)
            carried = [arena[start:stop] for start, stop in frame.arena_bounds]
            assert np.concatenate([*carried, arena[:0]]).tolist() == arena_positions(frame)
            lengths = [stop - start for start, stop in frame.arena_bounds]
            assert [stop - start for start, stop in frame.shard_bounds] == lengths
            ends = [frame.offset, *(stop for _, stop in frame.shard_bounds.tolist())]
            assert ends[:-1] == frame.shard_bounds[:, 0].tolist()
            assert ends[-1] == frame.offset + frame.count
            views = frame.views(arena)
            assert np.concatenate([*views, arena[:0]]).tolist() == arena_positions(frame)
            # Neighbours are one range.
            assert all(left[-1] + 1 < right[0] for left, right in pairwise(v for v in views if len(v)))


@quick
@given(groupings(), SERVERS, FRAME_ELEMENTS)
def test_a_frame_is_one_piece_of_each_layer_at_most(grouping: Grouping, servers: int, frame_elements: int) -> None:
    layout, _ = grouping
    for frame in (frame for frames in all_frames(grouping, servers, frame_elements) for frame in frames):
        layers = [
            next(i for i, stop in enumerate(layout.offsets[1:]) if piece.start < stop) for piece in frame.pieces
        ]
        assert layers == sorted(set(layers))
        for piece, layer in zip(frame.pieces, layers, strict=True):
            assert piece.stop <= layout.offsets[layer + 1]


@quick
@given(groupings(), SERVERS, FRAME_ELEMENTS)
def test_frames_are_found_by_group_and_by_offset(grouping: Grouping, servers: int, frame_elements: int) -> None:
    layout, groups = grouping
    for index, frames in enumerate(all_frames(grouping, servers, frame_elements)):
        framing = Framing(Shard(layout, servers, index), groups, frame_elements)
        assert framing.frames == frames
        assert [frame for group in framing.by_group for frame in group] == list(frames)
        assert all(frame.group == number for number, group in enumerate(framing.by_group) for frame in group)
        assert framing.largest == max([frame.count for frame in frames], default=0)
        assert framing.by_offset == {frame.offset: frame for frame in frames}


def test_a_server_without_values_has_no_frames() -> None:
    layout = Layout((LayerSpec("l", (TensorSpec("w", (1,)),)),))
    framing = Framing(Shard(layout, 2, 0), (Group(0, 0),), 10)
    assert (framing.frames, framing.by_group, framing.largest, framing.by_offset) == ((), ((),), 0, {})
