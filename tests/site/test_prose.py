"""Prose of pages: short sentences, and no more words in all than there are. TAIHU_REWRITE=1 records what is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import fmean

from support.pages import DOCS, is_made, pages, sentences

TABLE = Path(__file__).with_name("prose.json")
LONGEST_MEAN = 18.0
"""Words of a sentence in the mean; pages of which the table has a longer one may only come nearer."""
# All words outside of made pages and decisions are to be this few; the table's number may only fall.
AIM = 45_000


def texts() -> dict[str, str]:
    found = {str(page.relative_to(DOCS)): page.read_text(encoding="utf-8") for page in pages()}
    return {name: text for name, text in found.items() if not is_made(text)}


def mean(text: str) -> float:
    found = sentences(text)
    return round(fmean(found), 1) if found else 0.0


def test_sentences_are_no_longer_and_words_no_more_than_recorded() -> None:
    means = {name: mean(text) for name, text in texts().items()}
    long = {name: each for name, each in means.items() if each > LONGEST_MEAN}
    words = sum(len(text.split()) for text in texts().values())
    if os.environ.get("TAIHU_REWRITE"):
        TABLE.write_text(json.dumps({"words": words, "means": long}, indent=2) + "\n")
    table = json.loads(TABLE.read_text())
    assert words <= max(AIM, table["words"]), f"{words} words, {table['words']} were there: leave out as many"
    longer = {name: each for name, each in long.items() if each > table["means"].get(name, LONGEST_MEAN)}
    assert not longer, f"words of a sentence in the mean, expected at most {LONGEST_MEAN} or the table's: {longer}"


def test_a_how_to_is_read_at_a_glance() -> None:
    pages = {name: text.count("\n") for name, text in texts().items() if name.startswith("howto/")}
    assert len(pages) > 8
    assert not {name: lines for name, lines in pages.items() if lines > 60}


def test_the_table_names_pages_that_have_such_sentences() -> None:
    table = json.loads(TABLE.read_text())["means"]
    found = texts()
    assert not [name for name in table if name not in found or mean(found[name]) <= LONGEST_MEAN], "take them out"


def test_sentences_are_counted_as_a_reader_does() -> None:
    text = "# A title of words\n\nOne two three. Four `a b c` five?\n\n- An item\n  goes on.\n- [A link](x.md).\n"
    assert sentences(text + "\n| a | b |\n```sh\nno words\n```\n") == [3, 3, 4, 2]
