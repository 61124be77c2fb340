"""Texts for people: numbers and lists in words, messages of one line, rows as aligned columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["aligned", "counted", "listed", "one_line"]


def counted(number: int, thing: str) -> str:
    """`1 group`, `2 groups`, `1,000 groups`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def listed(things: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(things[:-1]), *things[-1:]) if part)


def one_line(text: str) -> str:
    """`text` with a single space for every break or run of white space."""
    return " ".join(text.split())


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> Iterator[str]:
    """A line for each row; the first `left` columns, by default all, begin at one place, the others end at one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        line = "  ".join(
            f"{cell:{'<' if left is None or place < left else '>'}{width}}" for place, (cell, width) in cells
        )
        yield line.rstrip()
