"""The actions that the step protocol returns, each of which says where it is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from taihu.core.wire.frames.headers import At


class Place(Enum):
    """The place of an action: who carries it out, and when.

    `BOOK`: at once, under the lock: memory is given back before anybody can see that it may be used again.
    `LOOP`: the training loop, which alone causes it.
    `VALUES`: the training loop where it caused it; what the network caused, the exchange's own thread.
    `OWN`: the exchange's own thread, unless the attempt has been given up by then.
    """

    BOOK = "book"
    LOOP = "loop"
    VALUES = "values"
    OWN = "own"


@dataclass(frozen=True)
class Push:
    """Send the group's gradients; with `skipped` they are not to be applied, because some do not fit."""

    place: ClassVar = Place.LOOP
    group: int
    skipped: bool = False


@dataclass(frozen=True)
class Agree:
    """Tell all workers whether a gradient of this worker does not fit; `agreed` follows."""

    place: ClassVar = Place.LOOP
    overflowed: bool


@dataclass(frozen=True)
class Cancel:
    """Forget what is under way of this attempt: nobody waits for it, and what still comes is refused."""

    place: ClassVar = Place.LOOP
    at: At


@dataclass(frozen=True)
class Ask:
    """Fetch the group's parameters as they are after `step`; `arrived` follows for every part."""

    place: ClassVar = Place.VALUES
    group: int
    step: int


@dataclass(frozen=True)
class Widen:
    """Make the group's 16-bit parameters what is computed with; `widened` follows."""

    place: ClassVar = Place.VALUES
    group: int


@dataclass(frozen=True)
class Apply:
    """Update by the sums of all groups, clipped together; `applied` follows."""

    place: ClassVar = Place.OWN
    at: At


@dataclass(frozen=True)
class Drop:
    """Give the group's parameters back."""

    place: ClassVar = Place.BOOK
    group: int


@dataclass(frozen=True)
class DropAll:
    """Give all parameters back: other groups follow."""

    place: ClassVar = Place.BOOK


@dataclass(frozen=True)
class Release:
    """Give the memory of the group's gradients back."""

    place: ClassVar = Place.BOOK
    group: int


@dataclass(frozen=True)
class Done:
    """The group has been summed and updated by whoever owns it, or not at all where the step is `skipped`."""

    place: ClassVar = Place.BOOK
    group: int
    skipped: bool = False


Action = Push | Agree | Apply | Ask | Widen | Drop | DropAll | Release | Done | Cancel
