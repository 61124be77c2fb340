"""Floors of the house: no folder is needed by one that it needs, however long the way around."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("protos", "kernels", "core", "allreduce", "ps_server", "worker", "taihu")


def modules() -> dict[str, Path]:
    """The files of the packages by the names that they are imported by; links are followed by nobody here."""
    found = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts if parts[0] == "taihu" else ("taihu", *parts))] = path
    return found


def imported(source: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules among `known` that a source imports, at its top, in its functions, and for types."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def folders_that_need_each_other(needs: Mapping[str, set[str]]) -> list[str]:
    """The folders of one circle, none where there is no circle."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_folders_need_each_other() -> None:
    known = modules()
    assert len(known) > 700
    needs: dict[str, set[str]] = {}
    for path in known.values():
        folder = str(path.parent.relative_to(ROOT))
        others = (
            str(known[name].parent.relative_to(ROOT)) for name in imported(path.read_text(), known) if name in known
        )
        needs.setdefault(folder, set()).update(other for other in others if other != folder)
    assert folders_that_need_each_other(needs) == []


@pytest.mark.parametrize("source", ["from taihu.a.b import c", "from taihu.a import b", "import taihu.a.b"])
def test_an_import_is_found_in_whatever_form_and_place(source: str) -> None:
    text = f"def later():\n    if True:\n        {source}\n"
    assert list(imported(text, {"taihu.a.b": None})) == ["taihu.a.b"]


def test_a_circle_is_found_along_its_whole_way() -> None:
    needs = {"core": {"base"}, "worker": {"core"}, "base": {"worker"}}
    assert set(folders_that_need_each_other(needs)) == {"core", "worker", "base"}
    assert folders_that_need_each_other({"core": {"base"}, "worker": {"core", "base"}}) == []
