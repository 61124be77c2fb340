"""A membership that threads share, as those see it that need nothing else of the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from taihu.core.coordination.membership.membership import Membership


class SharedMembership(Protocol):
    """The coordinator, which lets one thread at a time look at its membership and change it."""

    def changing(self) -> AbstractContextManager[tuple[Membership, float]]:
        """The membership and the time, alone; whoever waits for a change looks again afterwards."""

    def wait_for(self, condition: Callable[[Membership], bool], timeout_s: float | None) -> bool:
        """Wait until `condition` holds; False when `timeout_s` passed first."""
