"""References between code and pages: what they name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
METHODS = ROOT / "docs" / "methods.md"
FOLDERS = ("kernels", "core", "taihu", "allreduce", "ps_server", "worker", "tests", "benchmarks", "docs")
PACKAGES = ("kernels", "core", "taihu", "allreduce", "ps_server", "worker")
PLACE = re.compile(r"`((?:[\w.-]+/)+(?!__pycache__)[\w.-]*)`")
MODULE = re.compile(r"`(\w+\.py)`")
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


def test_every_room_stands_in_the_table_of_the_house() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = [path.parent.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    assert not [room for room in rooms if f"`{room}/`" not in table]


def test_the_pages_that_show_the_way_name_files_that_exist() -> None:
    names = {path.name for path in written()}
    for page in (METHODS, ROOT / "CONTRIBUTING.md"):
        text = page.read_text()
        missing = [name for name in PLACE.findall(text) if not (ROOT / name).exists()]
        assert not missing, f"{page.name}: {missing}"
        assert not [name for name in MODULE.findall(text) if name not in names]


def test_the_ways_of_values_name_functions_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    steps = re.findall(r"^\d+\. (.*(?:\n   .*)*)", text, re.MULTILINE)
    assert len(steps) > 15
    mentioned = {Path(name).name for name in [*PLACE.findall(text), *MODULE.findall(text)]}
    files = [path for path in written() if path.name in mentioned]
    known = {name for path in files for name in re.findall(r"(?:def|class) (\w+)", path.read_text())}
    named = {name for step in steps for name in re.findall(r"`([A-Za-z_]\w*)`", step)}
    assert named <= known, named - known


def test_decisions_are_numbered_without_a_hole_and_listed() -> None:
    folder = ROOT / "docs" / "adr"
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in files] == list(range(1, len(files) + 1))
    titles = [(folder / name).read_text().splitlines()[0].partition(". ")[2] for name in files]
    listed = re.findall(r"^- \[\d{4}\]\((.+)\): (.+)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == list(zip(files, titles, strict=True))


def test_links_to_decisions_have_their_numbers() -> None:
    labels = re.compile(r"\[(?:ADR )?(\d+)\]\((?:\w+/)*(\d{4})-[\w-]+\.md")
    pages = [path for path in written() if path.suffix == ".md"]
    found = [(path.name, *match) for path in pages for match in labels.findall(path.read_text())]
    assert len(found) > 100
    assert not [each for each in found if int(each[1]) != int(each[2])]
