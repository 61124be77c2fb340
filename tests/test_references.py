"""References between code and pages: what they name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
METHODS = ROOT / "docs" / "methods.md"
FOLDERS = ("kernels", "taihu", "allreduce", "ps_server", "worker", "tests", "benchmarks", "docs")
# "docs/methods.md section 1.3", and the short forms that once were: "methods section 3", "Methods 1.1".
REFERENCE = re.compile(r"\bmethods(?:\.md)?,?\s(?:sections?\s)?(\d(?:\.\d)?)\b", re.IGNORECASE)


def written() -> Iterator[Path]:
    """Code and pages."""
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md"})


def test_every_reference_to_the_methods_names_a_section() -> None:
    sections = set(re.findall(r"^##+ (\d(?:\.\d)?)\.? ", METHODS.read_text(), re.MULTILINE))
    assert {"1", "1.1", "5"} <= sections
    found = {(path.name, number) for path in written() for number in REFERENCE.findall(path.read_text())}
    assert len(found) > 25
    assert {number for _, number in found} <= sections, sorted(found)
