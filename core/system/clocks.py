"""Clocks as functions, and sleep; where time is a parameter, `taihu.core.wire.base.clock` has objects.

`monotonic` is for all that is decided, `perf_counter` for what is measured, the time of day for people alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic, perf_counter
from time import time as wall_s

__all__ = ["local_now", "monotonic", "perf_counter", "sleep", "utc_now", "wall_s"]

sleep: Callable[[float], None] = time.sleep


def utc_now() -> datetime:
    """The time of day in UTC."""
    return datetime.now(UTC)


def local_now() -> datetime:
    """The time of day here, without a time zone."""
    return datetime.now()
