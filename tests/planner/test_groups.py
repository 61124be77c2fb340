"""Groups against brute force: buckets close when full, and a plan covers every layer once."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group, check_groups, gradient_room, group_of_layer, parameter_room, plan_groups

quick = settings(deadline=None)

LAYOUTS = st.lists(st.integers(0, 60), max_size=9).map(
    lambda sizes: Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (n,)),)) for i, n in enumerate(sizes)))
)
PLANS = st.sampled_from(["per-layer", "single"]) | st.integers(0, 900).map("bucket:{}B".format)
NUMBERS = st.lists(st.builds(Group, st.integers(-1, 5), st.integers(-1, 5)), max_size=4)


def is_cover(layers: int, groups: list[Group]) -> bool:
    """Whether the groups name every layer once and in order, and none is empty."""
    ranges = [range(group.first_layer, group.last_layer + 1) for group in groups]
    return all(ranges) and list(chain.from_iterable(ranges)) == list(range(layers))


def layers_of(count: int) -> Layout:
    return Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (1,)),)) for i in range(count)))


@quick
@given(LAYOUTS, st.integers(0, 900))
def test_a_bucket_closes_as_soon_as_it_is_full(layout: Layout, size: int) -> None:
    expected: list[Group] = []
    held: list[int] = []
    for index in range(len(layout.layers)):
        held.append(index)
        if sum(4 * layout.layers[i].elements for i in held) >= size:
            expected.append(Group(held[0], held[-1]))
            held = []
    if held:
        expected.append(Group(held[0], held[-1]))
    assert plan_groups(layout, f"bucket:{size}B") == tuple(expected)


@quick
@given(LAYOUTS, PLANS)
def test_every_plan_covers_every_layer_once(layout: Layout, plan: str) -> None:
    groups = plan_groups(layout, plan)
    assert is_cover(len(layout.layers), list(groups))
    check_groups(layout, groups)
    owner = group_of_layer(groups)
    assert len(owner) == len(layout.layers)
    for layer, group in enumerate(owner):
        assert groups[group].first_layer <= layer <= groups[group].last_layer


@quick
@given(LAYOUTS)
def test_a_group_for_each_layer_or_one_for_all(layout: Layout) -> None:
    assert len(plan_groups(layout, "per-layer")) == len(layout.layers)
    assert len(plan_groups(layout, "single")) == min(1, len(layout.layers))


@quick
@given(LAYOUTS, st.integers(1, 400), st.integers(1, 400))
def test_larger_buckets_are_never_more(layout: Layout, size: int, more: int) -> None:
    fewer = plan_groups(layout, f"bucket:{size + more}B")
    assert len(fewer) <= len(plan_groups(layout, f"bucket:{size}B"))


@pytest.mark.parametrize(
    ("size", "full"),
    [
        ("400B", 100),
        ("0.4kB", 100),
        ("1kB", 250),
        ("0.001MB", 250),
        ("1.5kB", 375),
        ("1MB", 250_000),
        ("1GB", 250_000_000),
    ],
)
def test_units_are_decimal(size: str, full: int) -> None:
    def groups(elements: int) -> tuple[Group, ...]:
        sizes = (elements, 1)
        layers = (LayerSpec(f"l{i}", (TensorSpec("w", (n,)),)) for i, n in enumerate(sizes))
        return plan_groups(Layout(tuple(layers)), f"bucket:{size}")

    assert groups(full) == (Group(0, 0), Group(1, 1))
    assert groups(full - 1) == (Group(0, 1),)


@quick
@given(st.integers(0, 6), NUMBERS)
def test_only_a_cover_passes_the_check(layers: int, groups: list[Group]) -> None:
    if is_cover(layers, groups):
        check_groups(layers_of(layers), tuple(groups))
        return
    with pytest.raises(ConfigError) as caught:
        check_groups(layers_of(layers), tuple(groups))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([Group(0, 0), Group(2, 3)], "does not continue at layer 1"),
        ([Group(0, 2), Group(2, 3)], "does not continue at layer 3"),
        ([Group(1, 3)], "does not continue at layer 0"),
        ([Group(2, 3), Group(0, 1)], "does not continue at layer 0"),
        ([Group(0, 2)], "covers 3 of 4 layers"),
        ([Group(0, 4)], "covers 5 of 4 layers"),
        ([], "covers 0 of 4 layers"),
        ([Group(0, -1), Group(0, 3)], "does not continue at layer 0"),
    ],
)
def test_what_is_no_cover_is_described(groups: list[Group], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_groups(layers_of(4), tuple(groups))


@pytest.mark.parametrize(
    "plan",
    [
        "",
        "Single",
        "per layer",
        "bucket",
        "bucket:",
        "bucket:B",
        "bucket:4",
        "bucket:MB",
        "bucket:4PB",
        "bucket:4KB",
        "bucket:4mb",
        "bucket:4MBB",
        "bucket:four MB",
        "bucket:nanB",
        "bucket:infMB",
        "bucket:-4MB",
        "bucket:4\nMB",
        "buckets:4MB",
        "bucket:4MB:2MB",
        "two\nlines",
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(plan: str) -> None:
    with pytest.raises(ConfigError, match="for example") as caught:
        plan_groups(layers_of(3), plan)
    assert len(str(caught.value).splitlines()) == 1
    assert ("expected per-layer, single or bucket:SIZE" in str(caught.value)) != plan.startswith("bucket:")


def test_every_bucket_begins_empty() -> None:
    """Layers of 8, 4, 4 and 4 B."""
    layout = Layout(tuple(LayerSpec(f"l{n}", (TensorSpec("w", (size,)),)) for n, size in enumerate((2, 1, 1, 1))))
    assert plan_groups(layout, "bucket:5B") == (Group(0, 0), Group(1, 2), Group(3, 3))


def test_without_groups_nothing_is_held() -> None:
    assert parameter_room([], 0) == gradient_room([], 0) == 0
