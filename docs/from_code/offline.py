"""Whether a site loads nothing from elsewhere: `python -m from_code.offline FOLDER` tells what it would."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Links that a reader follows (`<a href>`) are no part of a page.
_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe|source|embed|object)\b[^>]*?\b(?:src|data)=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b[^>]*?\bhref=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|(?:url\(|@import\s)["']?(?:https?:)?//[^"')\s]+""",
    re.IGNORECASE,
)


def loaded_from_elsewhere(folder: Path) -> Iterator[str]:
    """The addresses that pages and style sheets in `folder` would load by the network."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".html", ".css", ".svg"}:
            for found in _LOADED.findall(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(folder)}: {found}"


if __name__ == "__main__":
    outside = list(loaded_from_elsewhere(Path(sys.argv[1])))
    sys.exit("\n".join(outside) or 0)
