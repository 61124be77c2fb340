"""The words of the step protocol: what it is keyed by, the rules it is given, and the actions it returns."""

from __future__ import annotations

from dataclasses import dataclass

from taihu.wire.headers import At

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
    "Reading",
    "Release",
    "Rules",
    "Widen",
]


@dataclass(frozen=True)
class Rules:
    """Rules of all steps of a run; without any of them everything stays where it is.

    Attributes:
        drops_gradients: the memory of a group's gradients is given back when they have been summed.
        fetches: parameters are fetched or widened when they are needed, and dropped after.
        widens: what is exchanged has 16 bits; the parameters that are computed with are made of it.
        keeps: the 16-bit parameters stay, so that each group is fetched once.
        holds: nothing is pushed before all gradients of a step are there, for one that does not fit skips the step.
        clips: nothing is updated before all groups of a step have been summed, for the norm of the whole gradient.
        agrees: workers agree on skipping before they push; else whoever sums is told, and tells everybody.
        asks_early: a group may be asked for while it is summed, and comes part by part as it is updated.
        ahead_of_forward: backward may ask for what it pushed in this step already, which the next forward reads.
        bucket_elements, live_elements: room for gradients and parameters, see `taihu.planner.groups`.
    """

    drops_gradients: bool = False
    fetches: bool = False
    widens: bool = False
    keeps: bool = False
    holds: bool = False
    clips: bool = False
    agrees: bool = False
    asks_early: bool = True
    ahead_of_forward: bool = True
    bucket_elements: int = 0
    live_elements: int = 0


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


@dataclass(frozen=True)
class Reading:
    """`group` is going to be read; those `following` are most likely next, those `staying` need not be dropped."""

    group: int
    following: tuple[int, ...] = ()
    staying: tuple[int, ...] = ()

    @property
    def wanted(self) -> tuple[int, ...]:
        """Groups that are to be here, first what is needed first."""
        return tuple(dict.fromkeys((self.group, *self.following)))
