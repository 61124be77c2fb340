"""A bound on how often a run begins again, and how long it waits before: pure, time comes in as an argument."""

from __future__ import annotations

from typing import Final

_WINDOW_S: Final = 3600.0


class Restarts:
    """At most `most` restarts within an hour; where a run gets no further, each waits twice as long as the last.

    Args:
        most: within an hour, whoever is started again.
        first_s: the first pause.
        longest_s: the longest one.
    """

    def __init__(self, most: int, *, first_s: float = 0.5, longest_s: float) -> None:
        self.most = most
        self._first_s = first_s
        self._longest_s = longest_s
        self._made: list[float] = []
        # By who is started again: the step that the run had come to then, and how often it was the same since.
        self._in_vain: dict[str, tuple[int, int]] = {}

    def left(self, now: float) -> int:
        """The restarts that may still be made within this hour."""
        return self.most - sum(now - made < _WINDOW_S for made in self._made)

    def pause_s(self, now: float, step: int, who: str = "") -> float | None:
        """The pause before `who` is started again after `step`, a restart that is counted; None where it may not be.

        Each waits for its own restarts alone: another one may be lost in the meantime.
        """
        if self.left(now) <= 0:
            return None
        self._made = [*(made for made in self._made if now - made < _WINDOW_S), now]
        last_step, times = self._in_vain.get(who, (-1, 0))
        times = times + 1 if step == last_step else 0
        self._in_vain[who] = step, times
        return min(self._longest_s, self._first_s * 2.0**times)
