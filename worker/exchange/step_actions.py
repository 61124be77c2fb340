"""The actions that the step protocol returns, which whoever gave it an input carries out in their order."""

from __future__ import annotations

from dataclasses import dataclass

from taihu.core.wire.frames.headers import At

__all__ = [
    "Action",
    "Agree",
    "Apply",
    "Ask",
    "Cancel",
    "Done",
    "Drop",
    "DropAll",
    "Push",
    "Release",
    "Widen",
]


@dataclass(frozen=True)
class Push:
    """Send the group's gradients; with `skipped` they are not to be applied, because some do not fit."""

    group: int
    skipped: bool = False


@dataclass(frozen=True)
class Agree:
    """Tell all workers whether a gradient of this worker does not fit; `agreed` follows."""

    overflowed: bool


@dataclass(frozen=True)
class Apply:
    """Update by the sums of all groups, clipped together; `applied` follows."""

    at: At


@dataclass(frozen=True)
class Ask:
    """Fetch the group's parameters as they are after `step`; `arrived` follows for every part."""

    group: int
    step: int


@dataclass(frozen=True)
class Widen:
    """Make the group's 16-bit parameters what is computed with; `widened` follows."""

    group: int


@dataclass(frozen=True)
class Drop:
    """Give the group's parameters back."""

    group: int


@dataclass(frozen=True)
class DropAll:
    """Give all parameters back: other groups follow."""


@dataclass(frozen=True)
class Release:
    """Give the memory of the group's gradients back."""

    group: int


@dataclass(frozen=True)
class Done:
    """The group has been summed and updated by whoever owns it, or not at all where the step is `skipped`."""

    group: int
    skipped: bool = False


@dataclass(frozen=True)
class Cancel:
    """Forget what is under way of this attempt: nobody waits for it, and what still comes is refused."""

    at: At


Action = Push | Agree | Apply | Ask | Widen | Drop | DropAll | Release | Done | Cancel
