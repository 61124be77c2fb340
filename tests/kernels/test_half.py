from __future__ import annotations

import struct
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.base.half import HALF_KINDS, HalfKind, from_half, split, to_half

quick = settings(deadline=None, max_examples=100)
kinds = st.sampled_from(HALF_KINDS)
anything = st.integers(0, 2**32 - 1)
near_ties = st.builds(
    lambda upper, lower, sign: sign << 31 | (upper << 12) + lower,
    st.integers(0, (0x7F800000 >> 12)),
    st.integers(-2, 2),
    st.integers(0, 1),
).map(lambda bits: bits & 0xFFFFFFFF)
LARGEST = {"fp16": 65504.0, "bf16": struct.unpack(">f", b"\x7f\x7f\x00\x00")[0]}


def values_of(bits: list[int]) -> NDArray[np.float32]:
    return np.array(bits, dtype=np.uint32).view(np.float32)


def encoded(values: NDArray[np.float32], kind: HalfKind) -> NDArray[np.uint16]:
    codes = np.full(len(values), 0xABCD, dtype=np.uint16)
    to_half(values, kind, codes)
    return codes


def decoded(codes: NDArray[np.uint16], kind: HalfKind) -> NDArray[np.float32]:
    values = np.full(len(codes), np.nan, dtype=np.float32)
    from_half(codes, kind, values)
    return values


def decoded_one(code: int, kind: HalfKind) -> float:
    """By the struct module: bf16 is the upper half of a fp32."""
    if kind == "fp16":
        return cast(float, struct.unpack(">e", struct.pack(">H", code))[0])
    return cast(float, struct.unpack(">f", struct.pack(">HH", code, 0))[0])


def nearest_code(value: float, kind: HalfKind) -> int:
    """By bisection over the codes of magnitudes, which ascend as their values do; ties to the even code."""
    magnitude = abs(value)
    low, high = 0, 0x7BFF if kind == "fp16" else 0x7F7F
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if decoded_one(middle, kind) <= magnitude else (low, middle)
    below, above = magnitude - decoded_one(low, kind), decoded_one(high, kind) - magnitude
    code = low if below < above or (below == above and low % 2 == 0) else high
    return code | (0x8000 if np.signbit(value) else 0)


def test_all_fp16_codes_decode_as_numpy_does() -> None:
    codes = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    expected = codes.view(np.float16).astype(np.float32)
    values = decoded(codes, "fp16")
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.signbit(values), np.signbit(expected))


@pytest.mark.parametrize("kind", HALF_KINDS)
def test_every_number_comes_back(kind: HalfKind) -> None:
    codes = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    values = decoded(codes, kind)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(encoded(values, kind)[numbers], codes[numbers])
    assert values[:: 2**9].tolist() == pytest.approx(
        [decoded_one(c, kind) for c in codes[:: 2**9]], nan_ok=True, abs=0
    )


@quick
@given(kinds, st.lists(st.one_of(anything, near_ties), min_size=1, max_size=200))
def test_finite_values_get_the_nearest_code(kind: HalfKind, bits: list[int]) -> None:
    values = values_of(bits)
    values = values[np.isfinite(values)]
    assert encoded(values, kind).tolist() == [nearest_code(float(value), kind) for value in values]


@quick
@given(st.lists(st.one_of(anything, near_ties), min_size=1, max_size=3000))
def test_fp16_rounds_as_numpy_does_below_the_largest_value(bits: list[int]) -> None:
    values = values_of(bits)
    values = values[np.abs(values) < 65520]
    np.testing.assert_array_equal(encoded(values, "fp16").view(np.float16), values.astype(np.float16))


@pytest.mark.parametrize("kind", HALF_KINDS)
def test_values_that_are_too_large_saturate_and_infinity_and_nan_stay(kind: HalfKind) -> None:
    largest = LARGEST[kind]
    limit = float(np.finfo(np.float32).max)
    bounds = np.array([largest, np.nextafter(np.float32(largest), np.float32(np.inf)), limit], dtype=np.float32)
    np.testing.assert_array_equal(decoded(encoded(bounds, kind), kind), np.full(3, largest, np.float32))
    np.testing.assert_array_equal(decoded(encoded(-bounds, kind), kind), np.full(3, -largest, np.float32))
    infinite = np.array([np.inf, -np.inf], dtype=np.float32)
    np.testing.assert_array_equal(decoded(encoded(infinite, kind), kind), infinite)
    nans = values_of([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF])
    codes = encoded(nans, kind)
    assert np.isnan(decoded(codes, kind)).all()
    assert (codes >> 15).tolist() == [0, 0, 0, 1, 1]


def bit_lists(largest_size: int) -> st.SearchStrategy[list[int]]:
    tie = st.builds(lambda i: (127 + 29) << 23 | i, st.integers(0, 2**23 - 1))
    return st.lists(st.one_of(anything, near_ties, tie), min_size=1, max_size=largest_size)


@quick
@given(kinds, bit_lists(500))
def test_what_rounding_takes_away_and_the_rounded_value_make_the_value(kind: HalfKind, bits: list[int]) -> None:
    values = values_of(bits)
    rest = values.copy()
    codes = np.empty(len(values), dtype=np.uint16)
    split(rest, codes, kind == "fp16")
    finite = np.isfinite(values)
    np.testing.assert_array_equal(rest[finite] + decoded(codes, kind)[finite], values[finite])
    assert (rest[~finite] == 0.0).all()
    alike = encoded(values, kind) == codes
    np.testing.assert_array_equal(codes[~alike], encoded(values, kind)[~alike] - 1)
    assert (np.abs(values[~alike]) >= 2.0**29).all()
    assert (np.abs(values[~alike]) < 2.0**30).all()


def test_the_largest_code_is_not_used_where_its_difference_would_be_lost() -> None:
    odd = values_of([(127 + 29) << 23 | 0x300001])
    codes = np.empty(1, dtype=np.uint16)
    rest = odd.copy()
    split(rest, codes, True)
    assert codes[0] == 0x7BFE
    assert rest[0] + np.float32(65472) == odd[0]
    assert (odd[0] - np.float32(65504)) + np.float32(65504) != odd[0]


@pytest.mark.parametrize("kind", HALF_KINDS)
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 63, 65, 1000])
def test_every_position_of_every_length_is_coded(kind: HalfKind, length: int) -> None:
    values = np.random.default_rng(length).standard_normal(length, dtype=np.float32)
    values.flags.writeable = False
    codes = encoded(values, kind)
    assert codes.tolist() == [nearest_code(float(value), kind) for value in values]
    assert decoded(codes, kind).tolist() == [decoded_one(code, kind) for code in codes.tolist()]


def test_unfit_arguments_are_refused() -> None:
    values, codes = np.ones(4, dtype=np.float32), np.zeros(4, dtype=np.uint16)
    with pytest.raises(ValueError, match="16-bit kind 'fp8': expected fp16 or bf16"):
        to_half(values, cast(HalfKind, "fp8"), codes)
    with pytest.raises(ValueError, match=r"float32\[4\] into uint16\[3\]; expected float32\[n\] into uint16\[n\]"):
        to_half(values, "fp16", codes[:3])
    with pytest.raises(ValueError, match=r"float64\[4\] into uint16\[4\]"):
        to_half(cast(NDArray[np.float32], values.astype(np.float64)), "bf16", codes)
    with pytest.raises(ValueError, match=r"uint16\[4\] into float64\[4\]; expected uint16\[n\] into float32\[n\]"):
        from_half(codes, "bf16", cast(NDArray[np.float32], values.astype(np.float64)))
    assert (codes == 0).all()
