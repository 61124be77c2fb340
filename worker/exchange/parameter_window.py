"""Which parameters are on a worker that keeps none: those in use and the next ones (ZeRO stage 3). Pure.

Methods section 5: a group is asked for before its forward and again before its backward, the one behind it meanwhile,
and dropped after its use, unless there is room for it until its next one. What is wanted while its gradients are
still being summed comes as soon as they have been: then parameters come down while other gradients go up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["ParameterWindow", "Todo", "leading_groups"]


def leading_groups(order: Iterable[int], sizes: Sequence[int], room: int) -> tuple[int, ...]:
    """Of the groups in `order`, whose sizes are `sizes[group]`, the first ones that fit into `room` together."""
    chosen = []
    for group in order:
        room -= sizes[group]
        if room < 0:
            break
        chosen.append(group)
    return tuple(chosen)


@dataclass(frozen=True)
class Todo:
    """What is to be done now: groups to ask for, in this order, and groups to drop."""

    ask: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()


class ParameterWindow:
    """The groups of a plan; none of them is here at first.

    A group whose gradients are being summed may be asked for: whoever fetches it waits until it has been updated.
    """

    def __init__(self) -> None:
        self._here: set[int] = set()
        self._asked: set[int] = set()
        self._summing: set[int] = set()

    def is_here(self, group: int) -> bool:
        """Whether the group's parameters can be read."""
        return group in self._here

    def is_asked(self, group: int) -> bool:
        """Whether the group's parameters are on their way, or will be when they have been updated."""
        return group in self._asked

    def is_summing(self, group: int) -> bool:
        """Whether the group's parameters are going to change."""
        return group in self._summing

    def use(self, group: int, following: Sequence[int] = (), staying: Sequence[int] = ()) -> Todo:
        """`group` is used until the next call; those `following` are most likely next.

        Those `staying` are not asked for, but not dropped either.
        """
        wanted = tuple(dict.fromkeys((group, *following)))
        dropped = tuple(sorted(self._here.difference(wanted, staying)))
        self._here.difference_update(dropped)
        asked = tuple(each for each in wanted if each not in self._here | self._asked)
        self._asked.update(asked)
        return Todo(ask=asked, drop=dropped)

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
