"""Selections in parcels of a known size: their sums beside NumPy's, and damage."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import FrameError
from taihu.core.compression.parcels import Parcels, sections_bound
from taihu.core.wire.frames.headers import ValueType
from taihu.kernels.base.half import from_half, to_half
from taihu.kernels.packing import pack, packed_bound
from taihu.kernels.packing.few_bits import largest_multiple


@st.composite
def positions(draw: st.DrawFn) -> tuple[int, Any]:
    """A size, and ascending positions below it: scattered, in runs, or all."""
    elements = draw(st.integers(1, 3000))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    share = draw(st.sampled_from([0.0, 0.001, 0.02, 0.3, 0.9, 1.0]))
    chosen = generator.random(elements) < share
    if draw(st.booleans()):
        chosen = np.sort(chosen)[:: draw(st.sampled_from([1, -1]))]
    return elements, np.flatnonzero(chosen).astype(np.int32)


@given(positions(), st.integers(0, 50))
def test_sections_fit_into_their_bound(drawn: tuple[int, Any], more: int) -> None:
    elements, indices = drawn
    values, out = np.zeros(len(indices), dtype=np.float32), np.empty(packed_bound(len(indices), 1), dtype=np.uint8)
    _, size = pack(indices, values, np.array([[0, elements]], dtype=np.int64), values.copy(), out)
    assert size <= sections_bound(min(elements, len(indices) + more), elements)


@given(st.integers(1, 2**31 - 1), st.floats(1e-6, 0.5))
def test_a_bound_is_no_more_than_a_bitmap_and_near_the_entropy(elements: int, share: float) -> None:
    count = max(1, int(share * elements))
    share = count / elements
    entropy = share * -np.log2(share) - (1 - share) * np.log2(max(1 - share, 1e-300))
    assert sections_bound(count, elements) <= 1 + -(-elements // 8)
    assert sections_bound(count, elements) <= 8 + (elements * entropy + 0.7 * count) / 8


@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
@given(st.data())
def test_the_sum_is_that_of_arrays_in_the_order_of_ranks(kind: str, data: st.DataObject) -> None:
    elements, _ = data.draw(positions())
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    ranks = data.draw(st.integers(1, 4))
    chosen = [np.flatnonzero(generator.random(elements) < 0.3).astype(np.int32) for _ in range(ranks)]
    most = max(map(len, chosen))
    parcels = Parcels(elements, most, ValueType.named(kind))
    received = np.full((ranks, parcels.room(most)), 0xFF, dtype=np.uint8)
    expected = np.zeros(elements, dtype=np.float32)
    for indices, parcel in zip(chosen, received, strict=True):
        values: Any = generator.standard_normal(len(indices)).astype(np.float32)
        values[::5] = -0.0
        if kind != "fp32":
            codes = np.empty(len(values), dtype=np.uint16)
            to_half(values, kind, codes)  # type: ignore[arg-type]
            from_half(codes, kind, values)  # type: ignore[arg-type]
            parcels.write(indices, codes, parcel)
        else:
            parcels.write(indices, values, parcel)
        expected[indices] += values
    outs = np.full((2, elements), np.nan, dtype=np.float32)
    for out in outs:
        parcels.sum(received, out)
        np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(*outs.view(np.int32))  # signs of zeros, too


@pytest.mark.parametrize("kind", ["int8", "int4", "int2"])
@given(st.data())
def test_codes_of_few_bits_are_multiples_of_the_steps_of_their_units(kind: str, data: st.DataObject) -> None:
    elements, _ = data.draw(positions())
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, elements - 1)), max_size=4)) - {elements})
    units = np.array(list(pairwise([0, *cuts, elements])), dtype=np.int64)
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    ranks = data.draw(st.integers(1, 4))
    chosen = [np.flatnonzero(generator.random(elements) < 0.3).astype(np.int32) for _ in range(ranks)]
    most, value_type = max(map(len, chosen)), ValueType.named(kind)
    zero = largest_multiple(value_type.few_bits)
    parcels = Parcels(elements, most, value_type, units)
    received = np.full((ranks, parcels.room(most)), 0xFF, dtype=np.uint8)
    expected = np.zeros(elements, dtype=np.float32)
    for indices, parcel in zip(chosen, received, strict=True):
        steps = np.ldexp(generator.integers(128, 256, len(units)), -3).astype(np.float32)  # each a bfloat16
        codes = generator.integers(0, 2 * zero + 1, len(indices)).astype(np.uint8)
        parcels.write(indices, codes, parcel, steps)
        of_unit = np.searchsorted(units[:, 1], indices, side="right")
        expected[indices] += (codes.astype(np.float32) - zero) * steps[of_unit]
    out = np.full(elements, np.nan, dtype=np.float32)
    parcels.sum(received, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("kind", ["fp32", "int4"])
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_parcel_is_an_error_or_other_values(kind: str, flips: list[tuple[int, int]]) -> None:
    parcels = Parcels(500, 40, ValueType.named(kind))
    received = np.zeros((2, parcels.room(40)), dtype=np.uint8)
    indices = np.arange(0, 500, 13, dtype=np.int32)
    values: Any = np.ones(len(indices), dtype=np.float32 if kind == "fp32" else np.uint8)
    for parcel in received:
        parcels.write(indices, values, parcel, None if kind == "fp32" else np.ones(1, dtype=np.float32))
    for place, value in flips:
        received[1, place % received.shape[1]] = value
    text = ""
    try:
        parcels.sum(received, np.empty(500, dtype=np.float32))
    except FrameError as error:
        text = str(error)
    assert not text or text.startswith("the selection of rank 1: ")


def test_a_parcel_of_more_than_it_has_room_for_names_its_rank() -> None:
    parcels = Parcels(64, 4, ValueType.FP32)
    received = np.zeros((2, parcels.room(4)), dtype=np.uint8)
    nothing = np.empty(0, dtype=np.int32)
    for parcel in received:
        parcels.write(nothing, np.empty(0, dtype=np.float32), parcel)
    received[1, 0] = 5
    with pytest.raises(FrameError, match="the selection of rank 1: 5 values and 1 bytes of positions in 40 bytes"):
        parcels.sum(received, np.empty(64, dtype=np.float32))
