"""A bound on how often a run is started again, and how long it waits before: pure, time comes in as an argument."""

from __future__ import annotations

from typing import Final

__all__ = ["Restarts"]

_WINDOW_S: Final = 3600.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0


class Restarts:
    """At most `most` restarts within an hour, each after a pause twice as long as that before the last one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._made: list[float] = []

    def pause_s(self, now: float) -> float | None:
        """The pause before the next restart, which is counted; None where there may be none."""
        self._made = [made for made in self._made if now - made < _WINDOW_S]
        if len(self._made) >= self.most:
            return None
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** len(self._made))
        self._made.append(now)
        return pause
