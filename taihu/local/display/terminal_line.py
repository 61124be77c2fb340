"""A run in one line of a terminal, of the parts that fit: pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Final

_GAP = "  "
_NAMED: Final = re.compile(r"\S+(?: \S+){0,3} {2,}(?=\S)")
_INDENT: Final = 2
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


def folded(text: str, width: int) -> str:
    """A line that stays, in as many lines of `width` columns as it needs, broken between words.

    Lines of a name and a value go on below the value. A line with a word that no line has room for stays whole: a
    path or hash that is copied from a terminal has no break in it then.
    """
    named = _NAMED.match(text)
    indent = len(named[0]) if named else _INDENT
    if len(text) <= width or indent + max(map(len, text.split()), default=0) > width:
        return text
    lines = textwrap.wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


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
