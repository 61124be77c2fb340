"""A run in one line of a terminal, of the parts that fit: pure."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["bar", "clock_time", "fitting", "remaining_s"]

_GAP = "  "
_DONE, _REST = "━", "╌"


def fitting(parts: Iterable[str], width: int) -> str:
    """The most important of `parts`, as many as a line of `width` columns has room for."""
    line = ""
    for part in parts:
        longer = f"{line}{_GAP}{part}" if line else part
        if part and len(longer) <= width:
            line = longer
        elif part:
            break
    return line


def bar(done: float, width: int) -> str:
    """A bar of `width` columns, of which the share `done` is complete."""
    filled = round(max(0.0, min(1.0, done)) * width)
    return _DONE * filled + _REST * (width - filled)


def clock_time(seconds: float) -> str:
    """`0:07`, `12:34`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def remaining_s(first: tuple[int, float], last: tuple[int, float], total: int) -> float | None:
    """Seconds that the steps up to `total` take at the pace between two looks, (step, seconds).

    None for no pace, or where the `total` is not known, 0.
    """
    steps, seconds = last[0] - first[0], last[1] - first[1]
    return (total - last[0]) * seconds / steps if steps > 0 and total else None
