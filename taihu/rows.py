"""Rows of texts as aligned columns, for terminals and pipes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["aligned"]


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> Iterator[str]:
    """A line for each row; the first `left` columns, by default all, begin at one place, the others end at one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        line = "  ".join(
            f"{cell:{'<' if left is None or place < left else '>'}{width}}" for place, (cell, width) in cells
        )
        yield line.rstrip()
