"""Which parameters are on a worker that keeps none: those in use and the next ones (ZeRO stage 3). A pure object.

Methods section 5: a group is asked for before its forward and again before its backward, the one behind it meanwhile,
and dropped after its use.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ParameterWindow", "Todo"]


@dataclass(frozen=True)
class Todo:
    """What is to be done now: groups to ask the servers for, in this order, and groups to drop."""

    ask: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()


class ParameterWindow:
    """The groups of a plan; none of them is here at first.

    A group whose gradients are being summed has no parameters that could be asked for, until the sum is complete.
    With `keep_all` nothing is dropped, until it is false again.
    """

    def __init__(self) -> None:
        self.keep_all = False
        self._wanted: tuple[int, ...] = ()
        self._here: set[int] = set()
        self._asked: set[int] = set()
        self._summing: set[int] = set()

    def is_here(self, group: int) -> bool:
        """Whether the group's parameters can be read."""
        return group in self._here

    def is_asked(self, group: int) -> bool:
        """Whether the group's parameters are on their way."""
        return group in self._asked

    def use(self, group: int, following: int) -> Todo:
        """`group` is used from now on, until another one is, and `following` is expected to be that one."""
        self._wanted = tuple(dict.fromkeys((group, following)))
        dropped = () if self.keep_all else tuple(sorted(self._here.difference(self._wanted)))
        self._here.difference_update(dropped)
        return Todo(ask=self._ask(self._wanted), drop=dropped)

    def pushed(self, group: int) -> Todo:
        """The group's gradients are complete: its parameters will change, and nobody reads them any more."""
        self._here.discard(group)
        self._summing.add(group)
        return Todo(drop=(group,))

    def summed(self, group: int) -> Todo:
        """All servers have updated the group's parameters."""
        self._summing.discard(group)
        return Todo(ask=self._ask((group,)) if group in self._wanted else ())

    def arrived(self, group: int) -> Todo:
        """The group's parameters, which were asked for, are all here."""
        self._asked.discard(group)
        if group not in self._wanted and not self.keep_all:
            return Todo(drop=(group,))
        self._here.add(group)
        return Todo()

    def _ask(self, groups: tuple[int, ...]) -> tuple[int, ...]:
        asked = tuple(g for g in groups if g not in self._here | self._asked | self._summing)
        self._asked.update(asked)
        return asked
