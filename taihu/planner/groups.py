"""Merging layers into groups: the unit in which gradients become ready and are exchanged.

Layers are numbered in backward order (0 is the output side), as in `taihu.layout`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from taihu.errors import ConfigError
from taihu.layout import Layout

__all__ = ["Group", "check_groups", "group_of_layer", "plan_groups"]

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(B|kB|MB|GB)")
_BYTES_PER_VALUE = 4


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
    kind, _, size = plan.partition(":")
    if kind != "bucket":
        raise ConfigError(
            f"exchange.plan {plan!r}: expected per-layer, single or bucket:SIZE, for example bucket:4MB"
        )
    return _buckets(layout, _parse_size(size))


def group_of_layer(groups: tuple[Group, ...]) -> tuple[int, ...]:
    """For each layer the index of its group."""
    return tuple(index for index, group in enumerate(groups) for _ in range(group.first_layer, group.last_layer + 1))


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
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"bucket size {text!r}: expected a number with B, kB, MB or GB, for example 4MB")
    return float(match[1]) * _UNITS[match[2]]
