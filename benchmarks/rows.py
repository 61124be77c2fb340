"""Rows that a benchmark adds to a file, one run after another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["load_rows", "save_rows"]


def load_rows(path: Path | None) -> list[dict[str, Any]]:
    """The rows that the file holds already; none without one."""
    return list(json.loads(path.read_text())) if path is not None and path.exists() else []


def save_rows(path: Path | None, rows: Sequence[dict[str, Any]]) -> None:
    """Write all of them, if there is a path."""
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n")
