"""Docstrings begin with their subject."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "core", "taihu", "allreduce", "ps_server", "worker", "benchmarks", "deploy", "tests")
# What begins so is half of a sentence ("How frames are cut"), or sends the reader elsewhere ("See `Base.method`").
# Texts are searched, not syntax trees: parsing all files takes seconds.
_WORDS = r"((In|By|To|From|For|Of|With) )?(What|How|Which|Where|When|Whom?|Why)\b|So (that|many|long)\b|See `"
FRAGMENT = re.compile(rf'^ *"""({_WORDS}).*', re.IGNORECASE | re.MULTILINE)


def test_docstrings_begin_with_their_subject() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0].strip()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for match in FRAGMENT.finditer(path.read_text())
    ]
    assert not found, "\n".join(found)
