"""Hashes of parameters: who differs from most is named, when all have told theirs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.core.coordination.membership.hashes import HashBook, checksums_in_words, difference

HASHES = st.sampled_from(["a" * 64, "b" * 64, "c" * 64])


@given(st.lists(HASHES, min_size=1, max_size=6))
def test_all_alike_or_told_once_all_are_there(hashes: list[str]) -> None:
    book = HashBook(len(hashes))
    told = [book.told(f"worker {rank}", 7, value) for rank, value in enumerate(hashes)]
    assert not any(told[:-1])
    assert bool(told[-1]) == (len(set(hashes)) > 1)


@given(st.lists(HASHES, min_size=1, max_size=6))
def test_those_that_differ_from_most_are_named(hashes: list[str]) -> None:
    words = difference({f"worker {rank}": value for rank, value in enumerate(hashes)})
    named = [rank for rank in range(len(hashes)) if f"worker {rank} " in words]
    most = max(hashes.count(value) for value in hashes)
    assert len(named) == (len(hashes) - most if most < len(hashes) else 0)
    assert len({value for rank, value in enumerate(hashes) if rank not in named}) == 1


def test_steps_that_some_never_tell_are_forgotten() -> None:
    book = HashBook(2)
    for step in range(1, 101):
        assert not book.told("worker 0", step, str(step))
    assert not book.told("worker 1", 1, "other")
    assert book.told("worker 1", 100, "other") in ("worker 0 100, 1 of 2 other", "worker 1 other, 1 of 2 100")


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6), st.data())
def test_the_first_parameter_that_differs_is_named(values: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(values) - 1))
    others = [*values[:first], values[first] ^ 1, *data.draw(st.permutations(values[first + 1 :]))]
    told = [
        checksums_in_words([(f"layer {i}.weight", value) for i, value in enumerate(each)])
        for each in (values, others)
    ]
    shown = difference({"worker 0": told[0], "worker 1": told[1]})
    assert shown.startswith(f"layer {first}.weight is the first: worker ")
    assert difference({"worker 0": told[0], "worker 1": told[0]}) == ""
    # Texts of members are cut: the hash of all is in front.
    cut = difference({"worker 0": told[0][:70], "worker 1": told[1][:70]})
    assert cut.startswith("worker ")
