"""Examples may take their time: on a loaded machine each takes longer than any deadline."""

from __future__ import annotations

from hypothesis import settings

FOUND = settings(max_examples=1)


def test_an_example_has_no_deadline() -> None:
    assert FOUND.deadline is None
