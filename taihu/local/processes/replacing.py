"""Processes that were killed and wait for another one in their place: pure, time comes in as an argument."""

from __future__ import annotations

from typing import Final

from taihu.core.coordination.restarts import Restarts

# The bound on restarts within an hour holds back what dies again and again; all others wait for this one meanwhile.
_LONGEST_PAUSE_S: Final = 2.0


class Replacing:
    """The times at which processes that were killed are started again, at most `most` within an hour."""

    def __init__(self, most: int) -> None:
        self._restarts = Restarts(most, longest_s=_LONGEST_PAUSE_S)
        self._due_s: dict[str, float] = {}

    @property
    def awaited(self) -> frozenset[str]:
        """The processes that are not started again yet."""
        return frozenset(self._due_s)

    def plan(self, name: str, now: float, step: int) -> bool:
        """A process was killed when the run had come to `step`; whether another one takes its place."""
        pause_s = self._restarts.pause_s(now, step, name)
        if pause_s is not None:
            self._due_s[name] = now + pause_s
        return pause_s is not None

    def due(self, now: float) -> list[str]:
        """The processes to be started again now; they are awaited no more."""
        names = [name for name, due in self._due_s.items() if due <= now]
        for name in names:
            del self._due_s[name]
        return names

    def give_up(self, name: str) -> None:
        """A process is awaited no more."""
        self._due_s.pop(name, None)
