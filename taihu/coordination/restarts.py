"""A bound on how often a run is started again, and how long it waits before: pure, time comes in as an argument."""

from __future__ import annotations

from typing import Final

__all__ = ["Restarts"]

_WINDOW_S: Final = 3600.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0


class Restarts:
    """At most `most` restarts within an hour; where a run gets no further, each waits twice as long as the last."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._made: list[float] = []
        self._step = -1
        self._in_vain = 0

    def left(self, now: float) -> int:
        """The restarts that may still be made within this hour."""
        return self.most - sum(now - made < _WINDOW_S for made in self._made)

    def pause_s(self, now: float, step: int) -> float | None:
        """The pause before the run goes on after `step`, a restart that is counted; None where there may be none."""
        self._made = [made for made in self._made if now - made < _WINDOW_S]
        if len(self._made) >= self.most:
            return None
        self._in_vain = self._in_vain + 1 if step == self._step else 0
        self._step = step
        self._made.append(now)
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**self._in_vain)
