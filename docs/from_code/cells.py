"""Cells of tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["code", "row", "table"]


def code(text: str) -> str:
    """`text` as code in a cell; an empty one stays empty."""
    return f"`{text}`" if text else ""


def row(cells: Iterable[str]) -> str:
    """A row of a table; what would end a cell is left out, and names in angle brackets are no HTML."""
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [row(head), "|" + "---|" * len(head), *map(row, rows)]


def _plain(cell: str) -> str:
    parts = re.split(r"(`[^`]*`)", " ".join(cell.split()))
    return "".join(
        part.replace("|", "/") if part.startswith("`") else part.replace("|", "/").replace("<", "&lt;")
        for part in parts
    )
