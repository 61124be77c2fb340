"""The end of a process that has not destroyed its groups: they leave, or tell the error that ends the process."""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from typing import Protocol

__all__ = ["leave_at_exit"]


class Leaving(Protocol):
    """A group that a process leaves."""

    def shutdown(self) -> None:
        """Leave in good order."""
        ...

    def give_up(self, reason: str) -> None:
        """Tell the others why this process ends."""
        ...


def leave_at_exit(group: Leaving) -> None:
    """Have `group` leave when the process ends, if it lives until then.

    That has to be before Python waits for threads that serve other ranks, which end when those leave: `atexit` comes
    after it, and all would wait for each other.
    """
    known = weakref.ref(group)

    def leave() -> None:
        left = known()
        if left is None:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            left.give_up(f"has ended with {error!r}")
        left.shutdown()

    register = getattr(threading, "_register_atexit", atexit.register)
    register(leave)
