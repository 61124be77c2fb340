"""Time as a parameter: what waits or measures takes a `Clock`, and tests hand in one that they move."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some instant, never falling."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        time.sleep(seconds)
