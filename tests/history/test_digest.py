"""Digests: sums that parts add up to, of bits and of places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taihu.core.history.digest import _FACTORS, _WEIGHTS, Values, bits_of, digest_at, digest_of

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.sampled_from([1, 2, 1020, 1021, 1022, 5000, 1021 * 64, 1021 * 64 + 1, 200_000])
STARTS = st.sampled_from([0, 1, 1020, 1021, 70_000])


def drawn(seed: int, size: int) -> Values:
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


@given(SEEDS, st.integers(1, 3000), STARTS)
@example(1887, 1146, 0)  # the last value drawn is -0.0, which counts as 0.0
def test_a_digest_is_a_sum_over_elements(seed: int, size: int, start: int) -> None:
    values = drawn(seed, size)
    words = np.where(values == 0, np.float32(0.0), values).view(np.uint32)
    bits = sum(int(word) * int(_FACTORS[(start + place) % 1021]) for place, word in enumerate(words))
    total = sum(float(value) * float(_WEIGHTS[(start + place) % 1021]) for place, value in enumerate(values))
    digest = digest_of(values, [(start, start + size)])
    assert digest.bits == bits_of(values, [(start, start + size)]) == bits % 2**64
    assert digest.total == pytest.approx(total, rel=1e-9, abs=1e-9)
    assert digest.size == pytest.approx(float(np.abs(values.astype(np.float64)).sum()), rel=1e-6)


@given(SEEDS, SIZES, STARTS, st.data())
def test_digests_of_parts_add_up(seed: int, size: int, start: int, data: st.DataObject) -> None:
    values, cut = drawn(seed, size), data.draw(st.integers(0, size))
    left = digest_of(values[:cut], [(start, start + cut)])
    right = digest_of(values[cut:], [(start + cut, start + size)])
    assert (left.bits + right.bits) % 2**64 == bits_of(values, [(start, start + size)])
    assert bits_of(values, [(start, start + cut), (start + cut, start + size)]) == bits_of(
        values, [(start, start + size)]
    )


@given(SEEDS, SIZES, STARTS, st.data())
def test_one_bit_and_two_places_show(seed: int, size: int, start: int, data: st.DataObject) -> None:
    values, bounds = drawn(seed, size), [(start, start + size)]
    before = bits_of(values, bounds)
    place, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 31))
    values.view(np.uint32)[place] ^= np.uint32(1 << bit)
    assert bits_of(values, bounds) != before
    values.view(np.uint32)[place] ^= np.uint32(1 << bit)
    other = data.draw(st.integers(0, size - 1))
    values[[place, other]] = values[[other, place]]
    if (place - other) % 1021 and values[place] != values[other]:
        assert bits_of(values, bounds) != before


def test_a_bit_that_makes_a_signaling_nan_shows_and_nothing_complains() -> None:
    """Warnings are errors here."""
    values, bounds, places = np.array([1.2], dtype=np.float32), [(0, 1)], np.array([0])
    before = bits_of(values, bounds)
    values.view(np.uint32)[0] ^= np.uint32(1 << 30)
    assert np.isnan(values[0])
    assert bits_of(values, bounds) != before
    assert digest_of(values, bounds).bits == digest_at(values, places).bits == bits_of(values, bounds)


@given(SEEDS, st.integers(1, 3000), STARTS, st.data())
def test_selected_values_have_the_digest_of_an_array_of_zeros_with_them(
    seed: int, size: int, start: int, data: st.DataObject
) -> None:
    values = np.zeros(size, dtype=np.float32)
    places = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), max_size=20))), dtype=np.int32)
    values[places] = drawn(seed, len(places))
    selected, whole = digest_at(values[places], places + start), digest_of(values, [(start, start + size)])
    assert selected.bits == whole.bits
    assert selected.total == pytest.approx(whole.total)


def test_zeros_have_no_sign_and_what_is_not_finite_no_total() -> None:
    assert bits_of(np.array([-0.0], dtype=np.float32), [(3, 4)]) == 0
    assert digest_of(np.array([np.inf, 1], dtype=np.float32), [(0, 2)])[1:] == (None, None)
    assert digest_at(np.array([np.nan], dtype=np.float32), np.array([7]))[1:] == (None, None)


def test_ranges_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3 values: expected as many as the ranges \[\(0, 2\)\] have"):
        digest_of(np.zeros(3, dtype=np.float32), [(0, 2)])
