"""Buckets that cap groups, and the room that groups need, against definitions spelt out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.cluster import layout_of

from taihu.core.model.layout import Layout
from taihu.core.planner.groups import (
    Group,
    cap_groups,
    check_groups,
    cut_at_kinds,
    gradient_room,
    group_bounds,
    group_of_layer,
    parameter_room,
)

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@st.composite
def merged(draw: st.DrawFn) -> tuple[list[int], tuple[Group, ...]]:
    sizes = draw(SIZES)
    cuts = [0, *(place for place in range(1, len(sizes)) if draw(st.booleans())), len(sizes)]
    return sizes, tuple(Group(first, following - 1) for first, following in pairwise(cuts))


@given(merged(), st.integers(1, 120))
def test_capped_groups_are_the_fewest_parts_of_what_was_merged(
    job: tuple[list[int], tuple[Group, ...]], most: int
) -> None:
    sizes, groups = job
    capped = cap_groups(groups, layout_of(*sizes), most)
    check_groups(layout_of(*sizes), capped)
    former = group_of_layer(groups)
    for group in capped:
        layers = range(group.first_layer, group.last_layer + 1)
        assert len(layers) == 1 or sum(sizes[layer] for layer in layers) <= most
        assert len({former[layer] for layer in layers}) == 1
    for left, right in pairwise(capped):
        if former[left.first_layer] == former[right.first_layer]:
            held = sum(sizes[left.first_layer : left.last_layer + 1])
            assert held + sizes[right.first_layer] > most


@given(merged(), st.data())
def test_groups_are_cut_where_the_kind_of_layers_changes_and_nowhere_else(
    job: tuple[list[int], tuple[Group, ...]], data: st.DataObject
) -> None:
    sizes, groups = job
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    plain = layout_of(*sizes)
    layout = Layout(tuple(replace(layer, kind=kind) for layer, kind in zip(plain.layers, kinds, strict=True)))
    cut = cut_at_kinds(groups, layout)
    check_groups(layout, cut)
    ends = {group.last_layer for group in groups}
    changes = {layer for layer, (kind, following) in enumerate(pairwise(kinds)) if kind != following}
    assert {group.last_layer for group in cut} == ends | changes


@given(merged())
def test_bounds_are_where_the_layers_of_a_group_lie(job: tuple[list[int], tuple[Group, ...]]) -> None:
    sizes, groups = job
    layer_of = [layer for layer, size in enumerate(sizes) for _ in range(size)]
    for group, (start, stop) in zip(groups, group_bounds(layout_of(*sizes), groups), strict=True):
        assert set(layer_of[start:stop]) == set(range(group.first_layer, group.last_layer + 1))
        assert stop - start == sum(sizes[group.first_layer : group.last_layer + 1])


@given(SIZES, st.integers(0, 100), st.integers(0, 400))
def test_there_is_room_for_any_group_and_its_neighbour(sizes: list[int], bucket: int, live: int) -> None:
    pairs = [left + right for left, right in pairwise(sizes)]
    assert parameter_room(sizes, 0) == max([*pairs, *sizes])
    assert parameter_room(sizes, live) == max(*pairs, *sizes, live)
    assert gradient_room(sizes, bucket) == max(*pairs, *sizes, 4 * bucket)
