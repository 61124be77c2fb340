"""A call that is held until there is something new to say: who breaks it off before may be gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taihu.core.coordination.control.control import Call
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.shared import SharedMembership


class HeldCall:
    """The call of a process that is there as long as it calls; made as soon as its call is noted.

    Args:
        coordinator: that answers.
        caller: of the call.
        hung_up: is told, with the time, where the call ends before it `is_answered`; called under the coordinator's
            lock.
    """

    def __init__(self, coordinator: SharedMembership, caller: Call, hung_up: Callable[[float], None]) -> None:
        self._coordinator = coordinator
        self._caller = caller
        self._hung_up = hung_up
        self._is_answered = False
        caller.when_ended(self._ended)

    def hold(self, has_news: Callable[[Membership], bool], longest_s: float) -> None:
        """Return when it `has_news`, after `longest_s`, or when half of the caller's patience is over."""
        self._coordinator.wait_for(has_news, min(longest_s, 0.5 * self._caller.left_s()))

    @contextmanager
    def answered(self) -> Iterator[Membership]:
        """The membership from which the answer is taken; the caller has it then, and has not hung up."""
        with self._coordinator.changing() as (membership, _):
            self._is_answered = True
            yield membership

    def _ended(self) -> None:
        if not self._is_answered:
            with self._coordinator.changing() as (_, now):
                self._hung_up(now)
