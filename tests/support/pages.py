"""The pages of docs/: blocks, links, sentences, as a reader finds them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCS", "Block", "blocks", "is_made", "linked", "pages", "sentences", "words"]

DOCS = Path(__file__).parents[2] / "docs"
_FENCE = re.compile(r"^( *)```(\{?\w*\}?)[^\n]*\n(.*?)^\1```$", re.M | re.S)
_MADE = "This page is made from the"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*(\[\d])")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page that it begins in."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """All pages but decisions, which stay as they were accepted."""
    return sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "adr")


def is_made(page: str) -> bool:
    """Whether a page is made from the code."""
    return _MADE in page


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, those in lists too."""
    for found in _FENCE.finditer(page):
        yield Block(found[2], textwrap.dedent(found[3]), page.count("\n", 0, found.start()) + 1)


def linked(path: Path) -> Iterator[tuple[Path, str]]:
    """Files that a page leads to, by links and tables of contents, each with an anchor or ""."""
    page = path.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language == "{toctree}":
            for line in block.text.splitlines():
                if line and not line.startswith(":"):
                    yield (path.parent / f"{line}.md").resolve(), ""
    for target in _LINK.findall(_FENCE.sub("", page)):
        if "://" not in target and not target.startswith("mailto:"):
            file, _, anchor = target.partition("#")
            yield (path.parent / file).resolve() if file else path.resolve(), anchor


def words(page: str) -> int:
    """Words that a reader finds outside of blocks and tables."""
    return sum(len(paragraph.split()) for paragraph in _paragraphs(page))


def sentences(page: str) -> list[int]:
    """The words of each sentence outside of blocks, tables and headings."""
    return [len(each.split()) for paragraph in _paragraphs(page) for each in _END.split(paragraph) if each.split()]


def _paragraphs(page: str) -> Iterator[str]:
    """Prose without marks; an item of a list is a paragraph of its own, and code counts as a word."""
    text = re.sub(r"<!--.*?-->", "", _FENCE.sub("\n", page), flags=re.S)
    text = re.sub(r"`[^`]*`", "`code`", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. ))", text):
        lines = [line for line in paragraph.splitlines() if not re.match(r"\s*\||#| {4}", line)]
        if joined := " ".join(lines).strip(" -*"):
            yield joined
