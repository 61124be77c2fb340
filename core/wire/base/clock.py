"""Time as a parameter: what waits or measures takes a `Clock`, what tells people when it was a `WallClock`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

from taihu.core.system.clocks import monotonic, sleep, wall_s


class Clock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The machine's monotonic clock; its functions are the system's own, called without one of ours between."""

    now = staticmethod(monotonic)
    sleep = staticmethod(sleep)


class WallClock:
    """The time of day, for people: it may jump, and nothing is decided by it. Any thread may call."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> float:
        """Seconds since 1970."""
        return wall_s() + self._ahead_s

    def utc(self) -> datetime:
        """The same as a date."""
        return datetime.fromtimestamp(self.now(), UTC)

    def jump(self, seconds: float) -> None:
        """Be so much further from now on."""
        self._ahead_s += seconds
