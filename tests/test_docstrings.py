"""Docstrings begin with their subject, in the packages and in what tests share."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "taihu", "allreduce", "ps_server", "worker", "benchmarks", "deploy", "tests/support")
# What begins so is half of a sentence ("How frames are cut"), or sends the reader elsewhere ("See `Base.method`").
FRAGMENT = re.compile(r"((In|By|To|From|For|Of|With) )?(What|How|Which|Where|When|Whom?|Why)\b|See `", re.IGNORECASE)


def docstrings() -> Iterator[tuple[str, str]]:
    """Place and text of every docstring."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node)
                    if text is not None:
                        yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}", text


def test_docstrings_begin_with_their_subject() -> None:
    found = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings() if FRAGMENT.match(text)]
    assert not found, "\n".join(found)
