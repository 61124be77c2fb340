"""Which parameters are on a worker that keeps none: those in use and the next ones (ZeRO stage 3). A pure object.

Methods section 5: a group is asked for before its forward and again before its backward, the one behind it meanwhile,
and dropped after its use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ParameterWindow", "Todo"]


@dataclass(frozen=True)
class Todo:
    """What is to be done now: groups to ask for, in this order, and groups to drop."""

    ask: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()


class ParameterWindow:
    """The groups of a plan; none of them is here at first.

    A group whose gradients are being summed has no parameters that could be asked for, until the sum is complete.
    With `keep_all` nothing is dropped, until `drop_all`.
    """

    def __init__(self) -> None:
        self.keep_all = False
        self._here: set[int] = set()
        self._asked: set[int] = set()
        self._summing: set[int] = set()

    def is_here(self, group: int) -> bool:
        """Whether the group's parameters can be read."""
        return group in self._here

    def is_asked(self, group: int) -> bool:
        """Whether the group's parameters are on their way."""
        return group in self._asked

    def is_summing(self, group: int) -> bool:
        """Whether the group's parameters are going to change."""
        return group in self._summing

    def use(self, group: int, following: Sequence[int] = ()) -> Todo:
        """`group`, which is not being summed, is used until the next call; those `following` are most likely next."""
        wanted = tuple(dict.fromkeys((group, *following)))
        dropped = () if self.keep_all else tuple(sorted(self._here.difference(wanted)))
        self._here.difference_update(dropped)
        asked = tuple(each for each in wanted if each not in self._here | self._asked | self._summing)
        self._asked.update(asked)
        return Todo(ask=asked, drop=dropped)

    def drop_all(self) -> None:
        """Nothing is here any more, and nothing is kept."""
        self.keep_all = False
        self._here.clear()

    def pushed(self, group: int) -> Todo:
        """The group's gradients are complete: its parameters will change, and nobody reads them any more."""
        self._here.discard(group)
        self._summing.add(group)
        return Todo(drop=(group,))

    def summed(self, group: int) -> None:
        """The group's parameters have been updated by whoever owns them."""
        self._summing.discard(group)

    def arrived(self, group: int) -> None:
        """The group's parameters, which were asked for, are all here."""
        self._asked.discard(group)
        self._here.add(group)
