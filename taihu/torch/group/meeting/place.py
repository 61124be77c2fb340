"""The place of a process in a group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupPlace:
    """A process's place in a group: `rank` of `size`; `name` is the group's, `timeout_s` that of its operations."""

    name: str
    rank: int
    size: int
    timeout_s: float
