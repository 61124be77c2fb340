"""The partition: every value belongs to one frame of one server, and load is balanced in every group."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taihu.layout import LayerSpec, Layout, TensorSpec
from taihu.planner.groups import Group, group_of_layer, plan_groups
from taihu.planner.partition import FrameSpec, Shard

LAYOUTS = st.lists(st.integers(0, 60), min_size=1, max_size=8).map(
    lambda sizes: Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (n,)),)) for i, n in enumerate(sizes)))
)


@st.composite
def groupings(draw: st.DrawFn) -> tuple[Layout, tuple[Group, ...]]:
    layout = draw(LAYOUTS)
    layers = len(layout.layers)
    cuts = sorted(draw(st.sets(st.integers(1, layers - 1)))) if layers > 1 else []
    bounds = [0, *cuts, layers]
    return layout, tuple(Group(a, b - 1) for a, b in pairwise(bounds))


def all_frames(layout: Layout, groups: tuple[Group, ...], servers: int, size: int) -> list[tuple[FrameSpec, ...]]:
    return [Shard(layout, servers, index).frames(groups, size) for index in range(servers)]


@given(groupings(), st.integers(1, 5), st.integers(1, 30))
def test_every_value_is_in_one_frame_of_its_own_group(
    grouping: tuple[Layout, tuple[Group, ...]], servers: int, frame_elements: int
) -> None:
    layout, groups = grouping
    owner = np.zeros(layout.elements, dtype=int)
    for frames in all_frames(layout, groups, servers, frame_elements):
        for frame in frames:
            start = layout.offsets[groups[frame.group].first_layer]
            stop = layout.offsets[groups[frame.group].last_layer + 1]
            assert 0 < frame.count <= frame_elements
            assert sum(piece.stop - piece.start for piece in frame.pieces) == frame.count
            for piece in frame.pieces:
                assert start <= piece.start < piece.stop <= stop
                owner[piece.start : piece.stop] += 1
    assert (owner == 1).all()


@given(groupings(), st.integers(1, 5), st.integers(1, 30))
def test_a_servers_frames_lie_one_after_another_in_its_arena(
    grouping: tuple[Layout, tuple[Group, ...]], servers: int, frame_elements: int
) -> None:
    layout, groups = grouping
    for index, frames in enumerate(all_frames(layout, groups, servers, frame_elements)):
        following = 0
        for frame in frames:
            assert frame.offset == following
            following += frame.count
        assert following == Shard(layout, servers, index).elements


@given(LAYOUTS, st.integers(1, 5))
def test_layers_are_cut_equally_whatever_the_plan(layout: Layout, servers: int) -> None:
    shards = [Shard(layout, servers, index) for index in range(servers)]
    for layer in range(len(layout.layers)):
        sizes = [shard.offsets[layer + 1] - shard.offsets[layer] for shard in shards]
        assert max(sizes) - min(sizes) <= 1
    mapping = []
    for plan in ("per-layer", "single", "bucket:100B"):
        frames = all_frames(layout, plan_groups(layout, plan), servers, 7)
        pairs = {
            (index, frame.offset + at): piece.start + i
            for index, own in enumerate(frames)
            for frame in own
            for at, (piece, i) in enumerate((p, i) for p in frame.pieces for i in range(p.stop - p.start))
        }
        mapping.append(pairs)
    assert mapping[0] == mapping[1] == mapping[2]


@given(LAYOUTS, st.integers(1, 400))
def test_a_bucket_closes_as_soon_as_it_is_full(layout: Layout, size: int) -> None:
    groups = plan_groups(layout, f"bucket:{size}B")
    expected, held = [], []
    for index, layer in enumerate(layout.layers):
        held.append(index)
        if sum(4 * layout.layers[i].elements for i in held) >= size or layer is layout.layers[-1]:
            expected.append(Group(held[0], held[-1]))
            held = []
    assert groups == tuple(expected)
    assert group_of_layer(groups) == tuple(
        next(g for g, group in enumerate(groups) if group.first_layer <= i <= group.last_layer)
        for i in range(len(layout.layers))
    )
