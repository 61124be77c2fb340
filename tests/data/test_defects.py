"""Defects of data, collected: each kind once, with its number and the first places, in one line of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import DataError
from taihu.worker.data.base.defects import Defects, Fault

MISSING = Fault("the value is missing", "fill it in", "column a")


def message(defects: Defects, skip_bad: int = 0) -> str:
    with pytest.raises(DataError) as caught:
        defects.check(skip_bad)
    return str(caught.value)


def test_one_is_told_by_its_place() -> None:
    defects = Defects("t.csv", "row")
    assert defects.check(0) == ""
    defects.of_samples(MISSING, [7])
    assert message(defects) == (
        "t.csv: row 7, column a: the value is missing; fill it in; or leave 1 row out with data.skip_bad = 1"
    )
    assert defects.check(1) == (
        "1 row left out by data.skip_bad: t.csv: row 7, column a: the value is missing; fill it in"
    )


def test_all_are_told_at_once() -> None:
    defects = Defects("./photos", "image")
    defects.of_samples(Fault("cannot be read", "delete it"), ["a.png", "b.png", "c.png", "d.png"])
    defects.of_samples(Fault("has another size"), ["d.png"])
    assert message(defects, 3) == (
        "./photos: 2 kinds of defects: (1) cannot be read, 4 images: a.png, b.png, c.png, ...; delete it "
        "(2) image d.png: has another size; or leave 4 images out with data.skip_bad = 4, which is 3"
    )
    assert defects.bad == {"a.png", "b.png", "c.png", "d.png"}


def test_what_is_wrong_with_all_of_it_cannot_be_left_out() -> None:
    defects = Defects("t.csv", "row")
    defects.of_samples(MISSING, [7])
    defects.of_data(Fault("2 columns are called 'a'", "give each its own name"))
    assert "(2) 2 columns are called 'a'; give each its own name" in message(defects, 10)
    assert "skip_bad" not in message(defects, 10)


@given(
    st.lists(st.tuples(st.text(max_size=300), st.lists(st.integers(1, 10**9), min_size=1, max_size=5)), max_size=30),
    st.integers(0, 5),
)
def test_as_many_as_allowed_are_left_out(found: list[tuple[str, list[int]]], allowed: int) -> None:
    defects = Defects("t.csv", "row")
    for text, rows in found:
        defects.of_samples(Fault(text), rows)
    bad = {row for _, rows in found for row in rows}
    if len(bad) <= allowed:
        assert bool(defects.check(allowed)) == bool(bad)
        return
    assert f"data.skip_bad = {len(bad)}" in message(defects, allowed)
    assert len(message(defects, allowed)) < 2000
    kinds = {text for text, _ in found}
    assert len(list(defects.lines())) == len(defects.as_json()) == len(kinds)
