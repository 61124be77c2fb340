"""Stand-ins for clocks, and for sleep."""

from __future__ import annotations

from datetime import UTC, datetime

from taihu.explore.scheduler import RUNNING

__all__ = ["local_now", "monotonic", "perf_counter", "sleep", "utc_now", "wall_s"]

# The wall clock of all runs, whatever the day: 2023-11-14 22:13:20 UTC less the seconds before a run begins.
_WALL_S = 1_700_000_000.0


def monotonic() -> float:
    """`time.monotonic`: virtual seconds."""
    return RUNNING().read_clock()


perf_counter = monotonic


def wall_s() -> float:
    """`time.time`: seconds since 1970 by the wall clock of the running task's process."""
    return _WALL_S + monotonic() + RUNNING().current.process.wall_ahead_s


def utc_now() -> datetime:
    """The time of day of the running task's process."""
    return datetime.fromtimestamp(wall_s(), UTC)


def local_now() -> datetime:
    """The same here, without a time zone."""
    return datetime.fromtimestamp(wall_s())


def sleep(seconds: float) -> None:
    """`time.sleep`, without spending time."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    scheduler = RUNNING()
    until_s = scheduler.deadline(seconds) or 0.0
    scheduler.block("time to pass", until_s)
    while scheduler.now < until_s:  # a signal came
        scheduler.block("time to pass", until_s)
