"""Rows that a benchmark adds to a file, one run after another, and their tables in pages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["in_page", "load_rows", "save_rows"]


def load_rows(path: Path | None) -> list[dict[str, Any]]:
    """The rows that the file holds already; none without one."""
    return list(json.loads(path.read_text())) if path is not None and path.exists() else []


def save_rows(path: Path | None, rows: Sequence[dict[str, Any]]) -> None:
    """Write all of them, if there is a path."""
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n")


def in_page(page: str, mark: str, text: str) -> str:
    """`page` with `text` in the place of what stands between the comments `mark` and `end`."""
    begin, end = f"<!-- {mark} -->", "<!-- end -->"
    place = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not place.search(page):
        raise SystemExit(f"error: the page has no lines {begin} and {end}")
    return place.sub(lambda _: f"{begin}\n{text}\n{end}", page)
