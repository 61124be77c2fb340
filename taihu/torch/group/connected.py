"""A process among the members of a group as they are now: what it runs with them, and how it leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taihu.core.base.errors import MemberLostError
from taihu.core.system.threads import Lock
from taihu.torch.group.meeting.place import GroupPlace
from taihu.torch.group.operations.callers import Callers
from taihu.torch.group.operations.exchange import GroupExchange
from taihu.torch.group.operations.messages import Messages
from taihu.torch.group.operations.order import Order

_FAREWELL_S: Final = 5.0


class Connected:
    """Operations and messages over `exchange`, of the process at `place`.

    Args:
        exchange: connected.
        place: of this process.
        explain: makes the error that a work raises of what has ended it.
    """

    def __init__(
        self, exchange: GroupExchange, place: GroupPlace, explain: Callable[[str, BaseException], BaseException]
    ) -> None:
        self.exchange = exchange
        self._rank = place.rank
        self._callers = Callers(f"taihu-{place.name}-callback")
        self.messages = Messages(exchange, explain, self._callers)
        self.order = Order(f"taihu-{place.name}", explain, self._callers)
        self._leaving = Lock()
        self._has_left = False

    def give_up(self, reason: str) -> None:
        """End every operation on all ranks with an error that says that this rank `reason`."""
        # Others need not ask whether all have called the same: this rank is lost to them.
        self.exchange.give_up(MemberLostError(f"worker {self._rank} {reason}"))

    def leave(self, within_s: float = _FAREWELL_S) -> None:
        """Leave when what was issued has ended, which an error does to it after so long; may be called again.

        Others are waited for in good order; behind an error they have a moment to hear of it.
        """
        with self._leaving:
            if self._has_left:
                return
            self._has_left = True
            if not self.order.close(within_s):
                self.give_up("has left the group before all that it had issued was done")
                self.order.close(_FAREWELL_S)
            self.messages.close()
            self._callers.close()
            self.exchange.close()
