"""Values of a few bits beside NumPy: nothing is lost, and no byte is read as anything else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.packing.few_bits import codes_bytes, pack_codes, read_codes, round_sums, take_multiples

quick = settings(deadline=None, max_examples=150)
BITS = st.sampled_from([8, 4, 2])
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
Values = NDArray[np.float32]


def taken(values: Values, bits: int) -> tuple[Values, NDArray[np.uint8], float]:
    """The rest of `values`, the codes, and the step."""
    rest, codes = values.copy(), np.full(len(values), 255, dtype=np.uint8)
    step = float(take_multiples(rest, np.arange(len(values), dtype=np.int32), codes, bits))
    return rest, codes, step


def decoded(codes: NDArray[np.uint8], step: float, bits: int) -> Values:
    multiples = codes.astype(np.float64) - (2 ** (bits - 1) - 1)
    sent: Values = (multiples * step).astype(np.float32)
    return sent


@quick
@given(st.lists(FINITE, max_size=40), BITS)
@example([1e-42, -1e-45], 4)
@example([3.4e38, -3.4e38, 1.0], 2)
def test_the_nearest_multiples_are_sent_and_the_rest_stays_to_the_bit(drawn: list[float], bits: int) -> None:
    values = np.array(drawn, dtype=np.float32)
    values[np.abs(values) > 3.3e38] /= 2
    rest, codes, step = taken(values, bits)
    sent = decoded(codes, step, bits)
    np.testing.assert_array_equal(rest + sent, values)
    assert (np.abs(rest.astype(np.float64)) <= step / 2 * (1 + 1e-12)).all()
    largest = float(np.abs(values.astype(np.float64)).max(initial=0.0))
    most = 2 ** (bits - 1) - 1
    assert step * most >= largest
    assert step <= max(2.0**-100, largest / most * (1 + 2**-6))
    # Two bytes hold it.
    assert np.float32(step).view(np.uint32) & 0xFFFF == 0


@quick
@given(st.lists(FINITE, min_size=1, max_size=10), st.sampled_from([np.inf, -np.inf, np.nan]), BITS, st.data())
def test_of_no_number_nothing_remains_and_all_hear(
    drawn: list[float], odd: float, bits: int, data: st.DataObject
) -> None:
    values = np.array(drawn, dtype=np.float32)
    place = data.draw(st.integers(0, len(values) - 1))
    values[place] = odd
    rest, codes, step = taken(values, bits)
    assert np.isnan(step)
    assert np.isnan(decoded(codes, step, bits)).all()
    values[place] = 0.0
    np.testing.assert_array_equal(rest, values)


@quick
@given(st.lists(st.lists(FINITE, max_size=9), min_size=1, max_size=4), BITS, st.integers(0, 3))
def test_packed_codes_of_pieces_are_read_again(drawn: list[list[float]], bits: int, gap: int) -> None:
    places, bounds, codes, steps, sent = [], [], [], [], []
    start = 0
    for piece in drawn:
        values = np.array(piece, dtype=np.float32) / np.float32(4)
        _, own, step = taken(values, bits)
        places += [start + gap + i for i in range(len(piece))]
        bounds.append((start, start + gap + len(piece) + 1))
        start = bounds[-1][1] + gap
        codes.append(own)
        steps.append(step)
        sent.append(decoded(own, step, bits))
    every = np.concatenate(codes)
    packed = np.full(codes_bytes(len(every), bits), 255, dtype=np.uint8)
    assert pack_codes(every, bits, packed) == len(packed) == -(-len(every) * bits // 8)
    out = np.full(len(every), np.nan, dtype=np.float32)
    arguments = np.array(places, dtype=np.int32), np.array(bounds), np.array(steps, dtype=np.float32)
    read_codes(packed, bits, *arguments, out)
    np.testing.assert_array_equal(out, np.concatenate(sent))


def rounded(
    residual: Values, indices: list[int], sums: Values, bounds: list[tuple[int, int]], bits: int
) -> tuple[NDArray[np.int32], Values, NDArray[np.uint8], Values]:
    """Places, values, codes and steps of what comes back; `residual` is changed."""
    places, values = np.full(len(indices), -1, dtype=np.int32), np.full(len(indices), np.nan, dtype=np.float32)
    codes, steps = np.full(len(indices), 255, dtype=np.uint8), np.full(len(bounds), -1, dtype=np.float32)
    own = np.array(indices, dtype=np.int32), sums.copy(), np.array(bounds, dtype=np.int64).reshape(-1, 2)
    count = round_sums(residual, *own, bits, places, values, codes, steps)
    return places[:count], values[:count], codes[:count], steps


@quick
@given(st.lists(st.lists(st.tuples(FINITE, FINITE), max_size=9), min_size=1, max_size=4), BITS, st.integers(0, 3))
def test_sums_are_rounded_with_what_was_left_of_those_before(
    drawn: list[list[tuple[float, float]]], bits: int, gap: int
) -> None:
    """Each piece as by `take_multiples`, without zeros; entries that no sum is of stay as they are."""
    before = np.full(sum(len(piece) + gap for piece in drawn), 3.0, dtype=np.float32)
    places: list[int] = []
    sums: list[float] = []
    bounds: list[tuple[int, int]] = []
    start = 0
    for piece in drawn:
        places += range(start, start + len(piece))
        before[start : start + len(piece)] = [left / 4 for left, _ in piece]
        sums += [value / 4 for _, value in piece]
        bounds.append((start, start + len(piece)))
        start += len(piece) + gap
    given_sums = np.array(sums, dtype=np.float32)
    after = before.copy()
    kept, values, codes, steps = rounded(after, places, given_sums, bounds, bits)
    owed = before.copy()
    owed[places] += given_sums
    expected = []
    for (first, stop), step in zip(bounds, steps.tolist(), strict=True):
        rest, own, wanted = taken(owed[first:stop], bits)
        assert step == wanted
        np.testing.assert_array_equal(after[first:stop], rest)
        sent = decoded(own, wanted, bits)
        expected += [(first + i, value) for i, value in enumerate(sent.tolist()) if value]
    assert [*zip(kept.tolist(), values.tolist(), strict=True)] == expected
    untouched = np.ones(len(before), dtype=bool)
    untouched[places] = False
    np.testing.assert_array_equal(after[untouched], before[untouched])
    together = after.copy()
    together[kept] += values
    np.testing.assert_array_equal(together, owed)
    assert not (codes == 2 ** (bits - 1) - 1).any()


def test_a_sum_that_is_no_number_makes_its_piece_none_and_leaves_nothing() -> None:
    residual = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    sums = np.array([1.0, np.inf, 1.0], dtype=np.float32)
    kept, values, _, steps = rounded(residual, [0, 1, 3], sums, [(0, 2), (2, 4)], 4)
    assert kept.tolist() == [0, 1, 3]
    assert np.isnan(values).tolist() == [True, True, False]
    assert np.isnan(steps[0])
    assert residual[:3].tolist() == [2.0, 0.0, 3.0]


@quick
@given(st.binary(max_size=12), BITS, st.integers(0, 30))
def test_any_bytes_are_values_or_an_error(octets: bytes, bits: int, count: int) -> None:
    packed = np.frombuffer(octets, dtype=np.uint8)
    out = np.zeros(count, dtype=np.float32)
    indices, bounds, steps = np.arange(count, dtype=np.int32), np.array([[0, 40]]), np.ones(1, dtype=np.float32)
    codes = (
        [octets[i * bits // 8] >> (i * bits % 8) & (2**bits - 1) for i in range(count)]
        if (len(octets) == codes_bytes(count, bits))
        else [255]
    )
    if max(codes, default=0) > 2**bits - 2:
        with pytest.raises(ValueError, match=r"a code of|bytes and 1 steps of"):
            read_codes(packed, bits, indices, bounds, steps, out)
    else:
        read_codes(packed, bits, indices, bounds, steps, out)
        assert out.tolist() == [code - (2 ** (bits - 1) - 1) for code in codes]
