"""Results as JSON files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from taihu.errors import ConfigError

__all__ = ["check_writable", "read_json", "write_json"]


def check_writable(*paths: Path | None) -> None:
    """Raise ConfigError for a file that cannot be written, before hours of work depend on it; `none` is none."""
    for path in paths:
        if path is None or str(path) in {"none", "-"}:
            continue
        if path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a folder; give a file in it")
        if not (os.access(path, os.W_OK) or (path.parent.is_dir() and os.access(path.parent, os.W_OK))):
            raise ConfigError(
                f"cannot write {path}: {path.parent} is not a folder that can be written; create it first"
            )


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write `results`, indented; raises ConfigError when the file cannot be written."""
    try:
        path.write_text(json.dumps(results, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote."""
    results: dict[str, Any] = json.loads(path.read_text())
    return results
