"""Numbers and lists in the words of messages."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counted", "listed"]


def counted(number: int, thing: str) -> str:
    """`1 group`, `2 groups`, `1,000 groups`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def listed(things: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(things[:-1]), *things[-1:]) if part)
