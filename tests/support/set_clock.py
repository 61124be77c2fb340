"""A clock that a test sets."""

from __future__ import annotations

__all__ = ["SetClock"]


class SetClock:
    """Stands at 0 s until a test sets `now_s`, or somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
