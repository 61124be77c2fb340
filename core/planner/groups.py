"""Merging layers into groups: the unit in which gradients become ready and are exchanged.

Layers are numbered in backward order (0 is the output side), as in `taihu.core.model.layout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import parse_bytes
from taihu.core.model.layout import Layout

_BYTES_PER_VALUE = 4
_BUCKETS_UNDER_WAY = 4


@dataclass(frozen=True)
class Group:
    """Layers `first_layer` to `last_layer`, both included."""

    first_layer: int
    last_layer: int


def plan_groups(layout: Layout, plan: str) -> tuple[Group, ...]:
    """Merge the layers of `layout` as `plan` says: `per-layer`, `single`, or `bucket:SIZE`.

    A bucket is closed as soon as it holds at least SIZE bytes of fp32 gradients.

    Raises:
        ConfigError: `plan` is none of these.
    """
    if plan == "per-layer":
        return tuple(Group(i, i) for i in range(len(layout.layers)))
    if plan == "single":
        return (Group(0, len(layout.layers) - 1),) if layout.layers else ()
    size = plan.removeprefix("bucket:")
    if size == plan:
        raise ConfigError(
            f"exchange.plan {plan!r}: expected per-layer, single or bucket:SIZE, for example bucket:4MB"
        )
    return _buckets(layout, _parse_size(size))


def group_of_layer(groups: tuple[Group, ...]) -> tuple[int, ...]:
    """For each layer the index of its group."""
    return tuple(index for index, group in enumerate(groups) for _ in range(group.first_layer, group.last_layer + 1))


def cap_groups(groups: Sequence[Group], layout: Layout, most_elements: int) -> tuple[Group, ...]:
    """Cut every group between layers so that none of several layers has more than `most_elements`.

    These are the buffers of constant size of ZeRO-R (Rajbhandari et al. 2020, section 6.2).
    """
    return tuple(part for group in groups for part in _parts(group, layout, most_elements))


def cut_at_kinds(groups: Sequence[Group], layout: Layout) -> tuple[Group, ...]:
    """Cut every group between layers of different kinds."""
    return tuple(part for group in groups for part in _of_one_kind(group, layout))


def _of_one_kind(group: Group, layout: Layout) -> Iterator[Group]:
    first = group.first_layer
    for layer in range(first + 1, group.last_layer + 1):
        if layout.layers[layer].kind != layout.layers[first].kind:
            yield Group(first, layer - 1)
            first = layer
    yield Group(first, group.last_layer)


def _parts(group: Group, layout: Layout, most_elements: int) -> Iterator[Group]:
    first, held = group.first_layer, 0
    for layer in range(group.first_layer, group.last_layer + 1):
        elements = layout.layers[layer].elements
        if layer > first and held + elements > most_elements:
            yield Group(first, layer - 1)
            first, held = layer, 0
        held += elements
    yield Group(first, group.last_layer)


def group_bounds(layout: Layout, groups: Sequence[Group]) -> tuple[tuple[int, int], ...]:
    """For each group the first element of the arena that belongs to it, and the one behind its last."""
    return tuple((layout.offsets[group.first_layer], layout.offsets[group.last_layer + 1]) for group in groups)


def _largest_pair(sizes: Sequence[int]) -> int:
    """The most that a group and the next one have together, of groups of these sizes."""
    return max((own + following for own, following in pairwise([*sizes, 0])), default=0)


def parameter_room(sizes: Sequence[int], live: int) -> int:
    """The most that a worker holds of parameters while groups of these sizes are dropped: two, or `live` if more."""
    return max(_largest_pair(sizes), live)


def gradient_room(sizes: Sequence[int], bucket: int) -> int:
    """The most that a worker holds of gradients while groups of these sizes are given back: two, or four buckets."""
    return max(_largest_pair(sizes), _BUCKETS_UNDER_WAY * bucket)


def check_groups(layout: Layout, groups: tuple[Group, ...]) -> None:
    """Raise ConfigError unless the groups cover every layer once, in backward order."""
    following = 0
    for group in groups:
        if group.first_layer != following or group.last_layer < group.first_layer:
            raise ConfigError(
                f"plan: group {group} does not continue at layer {following}; every layer belongs to one"
            )
        following = group.last_layer + 1
    if following != len(layout.layers):
        raise ConfigError(
            f"plan: covers {following} of {len(layout.layers)} layers; every layer belongs to one group"
        )


def _buckets(layout: Layout, size_bytes: float) -> tuple[Group, ...]:
    groups = []
    first = held = 0
    for index, layer in enumerate(layout.layers):
        held += layer.elements * _BYTES_PER_VALUE
        if held >= size_bytes or index == len(layout.layers) - 1:
            groups.append(Group(first, index))
            first, held = index + 1, 0
    return tuple(groups)


def _parse_size(text: str) -> float:
    size = parse_bytes(text)
    if size is None:
        raise ConfigError(f"bucket size {text!r}: expected a number with B, kB, MB, GB or TB, for example 4MB")
    return size
