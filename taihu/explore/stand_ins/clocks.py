"""Stand-ins for the clocks of `time` and `datetime`."""

from __future__ import annotations

import time as real_time
from datetime import datetime, tzinfo
from typing import Self

from taihu.explore.scheduler import RUNNING

__all__ = ["DateTime", "monotonic", "monotonic_ns", "sleep", "strftime", "wall", "wall_ns"]

# The wall clock of all runs, whatever the day: 2023-11-14 22:13:20 UTC less the seconds before a run begins.
_WALL_S = 1_700_000_000.0


def monotonic() -> float:
    """`time.monotonic` and `time.perf_counter`: virtual seconds."""
    return RUNNING().read_clock()


def monotonic_ns() -> int:
    """`time.monotonic_ns` and `time.perf_counter_ns`."""
    return int(monotonic() * 1e9)


def wall() -> float:
    """`time.time`: seconds since 1970 by the wall clock of the running task's process."""
    return _WALL_S + monotonic() + RUNNING().current.process.wall_ahead_s


def wall_ns() -> int:
    """`time.time_ns`."""
    return int(wall() * 1e9)


def sleep(seconds: float) -> None:
    """`time.sleep`, without spending time."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    scheduler = RUNNING()
    until_s = scheduler.deadline(seconds) or 0.0
    scheduler.block("time to pass", until_s)
    while scheduler.now < until_s:  # a signal came
        scheduler.block("time to pass", until_s)


def strftime(form: str, moment: real_time.struct_time | None = None) -> str:
    """`time.strftime`."""
    return real_time.strftime(form, real_time.gmtime(wall()) if moment is None else moment)


class DateTime(datetime):
    """`datetime.datetime`, whose `now` is that of the running task's process."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """As `datetime.datetime.now`."""
        return cls.fromtimestamp(wall(), tz)
