from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.base.half import HALF_KINDS, LARGEST, HalfKind, from_half, to_half
from taihu.kernels.half_sums import all_finite_half, narrow, sum_half_in_rank_order

quick = settings(deadline=None, max_examples=100)
kinds = st.sampled_from(HALF_KINDS)
INFINITY: dict[HalfKind, int] = {"fp16": 0x7C00, "bf16": 0x7F80}
lengths = st.integers(0, 40)
seeds = st.integers(0, 2**32 - 1)
# Zero and one; of fp16 and bf16 the smallest and largest of every sort, infinity and NaN.
EDGES = np.array([0, 1, 0x3C00, 0x3F80, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7F, 0x80, 0x7F7F, 0x7F80])


def codes_of(count: int, seed: int, below: int = 1 << 15) -> NDArray[np.uint16]:
    """16-bit codes of either sign, without it less than `below`; in one of four draws many of them edges."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, below, count)
    if seed % 4 == 0:
        codes = np.where(rng.random(count) < 0.5, rng.choice(EDGES, count) % below, codes)
    signed: NDArray[np.uint16] = (codes | rng.choice([0, 1 << 15], count)).astype(np.uint16)
    return signed


@quick
@given(lengths, seeds, kinds, st.floats(0, 2.0**127, width=32))
def test_narrowing_is_rounding_and_tells_what_is_beyond(
    count: int, seed: int, kind: HalfKind, largest: float
) -> None:
    # The upper half of an fp32 value has its exponent, and the lower one is what is rounded.
    bits = codes_of(count, seed).astype(np.uint32) << 16 | codes_of(count, seed + 1)
    values = bits.view(np.float32)
    codes, rounded = np.full(len(values), 7, dtype=np.uint16), np.empty(len(values), dtype=np.uint16)
    fit = narrow(values, kind, codes, largest)
    to_half(values, kind, rounded)
    assert codes.tobytes() == rounded.tobytes()
    assert fit == all(abs(value) <= np.float32(largest) for value in values.tolist())


@quick
@given(lengths, seeds, kinds, st.booleans())
def test_finite_codes_are_told_from_others(count: int, seed: int, kind: HalfKind, finite: bool) -> None:
    codes = codes_of(count, seed, INFINITY[kind] if finite else 1 << 15)
    values = np.empty(len(codes), dtype=np.float32)
    from_half(codes, kind, values)
    assert all_finite_half(codes, kind) == bool(np.isfinite(values).all())


@quick
@given(seeds, kinds, lengths, st.integers(1, 5))
def test_sums_are_those_of_fp32_in_rank_order(seed: int, kind: HalfKind, count: int, ranks: int) -> None:
    frames = [codes_of(count, seed + rank, INFINITY[kind]) for rank in range(ranks)]
    total = np.full(count, np.nan, dtype=np.float32)
    sum_half_in_rank_order(frames, kind, total)
    expected = np.zeros(count, dtype=np.float32)
    with np.errstate(over="ignore"):
        for frame in frames:
            values = np.empty(count, dtype=np.float32)
            from_half(frame, kind, values)
            expected = expected + values
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("kind", HALF_KINDS)
def test_the_largest_value_is_kept_and_the_next_one_is_beyond(kind: HalfKind) -> None:
    largest = np.float32(LARGEST[kind])
    codes = np.empty(1, dtype=np.uint16)
    assert narrow(np.array([largest]), kind, codes, LARGEST[kind])
    back = np.empty(1, dtype=np.float32)
    from_half(codes, kind, back)
    assert back[0] == largest
    assert not narrow(np.array([np.nextafter(largest, np.float32(np.inf))]), kind, codes, LARGEST[kind])
    assert not narrow(np.array([np.nan], dtype=np.float32), kind, codes, LARGEST[kind])


def test_what_cannot_be_summed_is_refused_and_nothing_changes() -> None:
    total = np.full(3, 5.0, dtype=np.float32)
    short, whole = np.zeros(2, dtype=np.uint16), np.zeros(3, dtype=np.uint16)
    wrong: list[list[NDArray[Any]]] = [[], [short], [whole, whole, short], [whole, total]]
    for frames in wrong:
        with pytest.raises(ValueError, match=r"16-bit"):
            sum_half_in_rank_order(frames, "fp16", total)
    with pytest.raises(ValueError, match="16-bit kind 'fp8'"):
        narrow(total, "fp8", np.zeros(3, dtype=np.uint16), 1.0)  # type: ignore[arg-type]
    assert (total == 5.0).all()
