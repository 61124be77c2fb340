"""The pages that are made from the code: `docs/generate` writes them, with --check it tells which are not so."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from from_code import api, command_pages, environment, errors, metrics, ports, protos
from taihu.core.job.reference import reference_markdown

DOCS: Final = Path(__file__).parents[1]
PAGES: Final[dict[str, Callable[[], str]]] = {
    "job.md": reference_markdown,
    "reference/api.md": api.page,
    "reference/commands.md": command_pages.page,
    "reference/environment.md": environment.page,
    "reference/errors.md": errors.page,
    "reference/metrics.md": metrics.page,
    "reference/ports.md": ports.page,
    "reference/protos.md": protos.page,
}


def main(arguments: list[str]) -> int:
    """Write all pages; with --check leave them, and return 1 where the committed ones differ."""
    differing = 0
    for name, made in PAGES.items():
        path, text = DOCS / name, made()
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before == text:
            continue
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
            continue
        differing += 1
        changes = difflib.unified_diff(before.splitlines(), text.splitlines(), f"docs/{name}", "made", lineterm="")
        sys.stdout.write("\n".join([*changes, ""]))
    if differing:
        sys.stderr.write("docs are not what the code says: run 'make reference' and commit\n")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
