"""The end of a process that has not destroyed its groups: they leave, or tell the error that ends the process."""

from __future__ import annotations

import weakref
from typing import Protocol

from taihu.core.process.ending import words_of_end
from taihu.core.system.threads import before_threads_end


class Leaving(Protocol):
    """A group that a process leaves."""

    def shutdown(self) -> None:
        """Leave in good order."""
        ...

    def give_up(self, reason: str) -> None:
        """Tell the others why this process ends."""
        ...


class Present:
    """The groups of a process, which leave when it ends, if they live until then.

    That has to be before Python waits for threads that serve other ranks, which end when those leave: `atexit` comes
    after it, and all would wait for each other.
    """

    def __init__(self) -> None:
        self._groups: weakref.WeakSet[Leaving] = weakref.WeakSet()
        self._is_known = False

    def add(self, group: Leaving) -> None:
        """Have `group` leave at the end."""
        self._groups.add(group)
        if not self._is_known:
            self._is_known = True
            before_threads_end(self._leave)

    def _leave(self) -> None:
        why = words_of_end()
        for group in list(self._groups):
            if why:
                group.give_up(f"has ended with {why}")
            group.shutdown()
