from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import taihu.kernels.selection.select
from taihu.kernels.base.half import HALF_KINDS, HalfKind, from_half, to_half
from taihu.kernels.selection.select import (
    accumulate_select,
    clear,
    kth_largest_magnitude,
    momentum_select,
    put_back,
    select,
    take,
    take_rounded,
)

Values = NDArray[np.float32]
quick = settings(deadline=None, max_examples=80)
lengths = st.one_of(
    st.sampled_from([0, 1, 2, 63, 64, 65, 127, 128, 511, 512, 513, 575, 1024, 1025]), st.integers(0, 3000)
)
thresholds = st.one_of(
    st.sampled_from([0.0, -1.0, 1.0, 1e-50, 1e-45, 1e300, np.inf, np.nan, 1.0 + 1e-12, 1.0 - 1e-12]),
    st.floats(0.0, 3.0),
)
seeds = st.integers(0, 999)
STAY = np.empty(0, dtype=np.float32)
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3.4028235e38, 1.0000001, -0.99999994],
    dtype=np.float32,
)


def some_values(elements: int, seed: int) -> Values:
    """Normal values of one size; in every third draw some of them special, in every third many equal."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(elements, dtype=np.float32)
    if seed % 3 == 1:
        where = rng.random(elements) < 0.3
        values[where] = rng.choice(SPECIAL, int(where.sum()))
    elif seed % 3 == 2:
        values = np.round(values)
    return values


def same_bits(left: Values, right: Values) -> bool:
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


def selected_positions(residual: Values, threshold: float) -> list[int]:
    """The rule as it is written, one fp64 value at a time."""
    return [i for i, r in enumerate(residual.tolist()) if not abs(r) < threshold and r != 0]


def sum_of(gradient: Values, residual: Values) -> Values:
    with np.errstate(invalid="ignore", over="ignore"):
        return residual + gradient


def momentum_oracle(
    gradient: Values, parameters: Values, velocity: Values, rule: tuple[float, float, bool, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """New velocity and what is added to the residual, in fp64."""
    momentum, decay, nesterov, scale = rule
    d = scale * gradient.astype(np.float64) + decay * parameters
    v = momentum * velocity.astype(np.float64) + d
    return v, d + momentum * v if nesterov else v


@quick
@given(lengths, thresholds, seeds, st.integers(-70, 70))
def test_accumulation_adds_everywhere_and_selects_by_the_rule(
    elements: int, threshold: float, seed: int, spare: int
) -> None:
    gradient, residual = some_values(elements, seed), some_values(elements, seed + 1)
    total = sum_of(gradient, residual)
    expected = selected_positions(total, threshold)
    room = max(0, len(expected) + spare)
    indices = np.full(room + 1, -7, dtype=np.int32)
    count = accumulate_select(gradient, residual, threshold, indices[:room], STAY)
    assert count == len(expected)
    assert indices[: min(count, room)].tolist() == expected[:room]
    assert indices[room] == -7
    np.testing.assert_array_equal(residual, total)


@quick
@given(lengths, thresholds, seeds, st.integers(-70, 70), st.booleans())
def test_what_is_selected_moves_if_there_is_room_and_can_be_put_back(
    elements: int, threshold: float, seed: int, spare: int, with_momentum: bool
) -> None:
    gradient, residual = some_values(elements, seed), some_values(elements, seed + 1)
    total = sum_of(gradient, residual)
    expected = selected_positions(total, threshold)
    room = max(0, len(expected) + spare)
    indices = np.empty(room, dtype=np.int32)
    values = np.full(room, 7, dtype=np.float32)
    if with_momentum:
        zeros = np.zeros((2, elements), dtype=np.float32)
        rule = (0.0, 0.0, False, 1.0)
        count = momentum_select(gradient, zeros[0], zeros[1], residual, threshold, indices, values, *rule)
    else:
        count = accumulate_select(gradient, residual, threshold, indices, values)
    assert count == len(expected)
    moved = np.array(expected[:room], dtype=np.int64)
    assert indices[: len(moved)].tolist() == moved.tolist()
    np.testing.assert_array_equal(values[: len(moved)], total[moved])
    assert (values[len(moved) :] == 7).all()
    left = total.copy()
    left[moved] = 0
    np.testing.assert_array_equal(residual, left)
    put_back(residual, indices[: len(moved)], values[: len(moved)])
    np.testing.assert_array_equal(residual, total)


@quick
@given(lengths, thresholds, seeds, st.integers(0, 3000))
def test_the_scan_alone_selects_the_same(elements: int, threshold: float, seed: int, room: int) -> None:
    residual = some_values(elements, seed)
    before = residual.copy()
    expected = selected_positions(residual, threshold)
    indices = np.empty(room, dtype=np.int32)
    assert select(residual, threshold, indices) == len(expected)
    assert indices[: len(expected)].tolist() == expected[:room]
    assert same_bits(residual, before)


def test_a_threshold_between_two_fp32_values_selects_the_upper_one_only() -> None:
    one, above = np.float32(1.0), np.nextafter(np.float32(1.0), np.float32(2.0))
    indices = np.empty(4, dtype=np.int32)
    residual = np.array([one, above, -one, -above], dtype=np.float32)
    assert select(residual, 1.0, indices) == 4
    assert select(residual, 1.0 + 2.0**-40, indices) == 2
    assert indices[:2].tolist() == [1, 3]
    assert select(residual, float(above) - 2.0**-40, indices) == 2
    assert select(residual, float(above), indices) == 2
    assert select(residual, float(above) + 2.0**-40, indices) == 0


@quick
@given(lengths, st.floats(0.0, 3.0), seeds, st.booleans(), st.sampled_from([(0.0, 0.0), (0.9, 0.01)]))
def test_momentum_follows_its_formula(
    elements: int, threshold: float, seed: int, nesterov: bool, scalars: tuple[float, float]
) -> None:
    rng = np.random.default_rng(seed)
    gradient, parameters, velocity, residual = rng.standard_normal((4, elements), dtype=np.float32)
    rule = (*scalars, nesterov, 0.25)
    new_velocity, added = momentum_oracle(gradient, parameters, velocity, rule)
    new_residual = residual + added
    indices = np.empty(elements, dtype=np.int32)
    count = momentum_select(gradient, parameters, velocity, residual, threshold, indices, STAY, *rule)
    np.testing.assert_allclose(velocity, new_velocity, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(residual, new_residual, rtol=1e-6, atol=1e-6)
    assert indices[:count].tolist() == selected_positions(residual, threshold)


@quick
@given(lengths, seeds, st.booleans())
def test_momentum_of_small_integers_is_exact_however_the_range_is_cut(
    elements: int, seed: int, nesterov: bool
) -> None:
    rng = np.random.default_rng(seed)
    gradient, parameters, velocity, residual = rng.integers(-50, 50, (4, elements)).astype(np.float32)
    rule = (0.5, 0.25, nesterov, 2.0)
    new_velocity, added = momentum_oracle(gradient, parameters, velocity, rule)
    new_residual = residual + added
    cut = int(rng.integers(0, elements + 1))
    indices = np.empty(elements, dtype=np.int32)
    for part in (slice(0, cut), slice(cut, elements)):
        arrays = (gradient[part], parameters[part], velocity[part], residual[part])
        momentum_select(*arrays, 1.0, indices, STAY, *rule)
    np.testing.assert_array_equal(velocity, new_velocity)
    np.testing.assert_array_equal(residual, new_residual)


@quick
@given(lengths, seeds)
def test_cutting_a_range_changes_no_bit(elements: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = rng.standard_normal((4, elements), dtype=np.float32)
    whole, parts = arrays.copy(), arrays.copy()
    indices = np.empty(elements, dtype=np.int32)
    momentum_select(whole[0], whole[1], whole[2], whole[3], 1.0, indices, STAY, 0.9, 0.01, True, 0.3)
    cut = int(rng.integers(0, elements + 1))
    for part in (slice(0, cut), slice(cut, elements)):
        gradient, parameters, velocity, residual = (array[part] for array in parts)
        momentum_select(gradient, parameters, velocity, residual, 1.0, indices, STAY, 0.9, 0.01, True, 0.3)
    assert same_bits(whole, parts)


@quick
@given(lengths.filter(bool), seeds, st.floats(0.0, 1.0))
def test_the_kth_largest_magnitude_is_the_sorted_one(elements: int, seed: int, where: float) -> None:
    values = some_values(elements, seed)
    k = 1 + int(where * (elements - 1))
    magnitudes = np.abs(values)
    expected = np.sort(magnitudes)[::-1]
    expected = np.concatenate([expected[np.isnan(expected)], expected[~np.isnan(expected)]])
    assert kth_largest_magnitude(values, k) == pytest.approx(float(expected[k - 1]), nan_ok=True, abs=0, rel=0)


@pytest.mark.parametrize("k", [1, 2, 50, 999, 5000, 20_000, 49_999, 50_000])
@pytest.mark.parametrize("kind", ["normal", "equal", "misleading", "many sizes", "zeros", "subnormal"])
def test_the_kth_largest_magnitude_of_samples_that_mislead(kind: str, k: int) -> None:
    rng = np.random.default_rng(k)
    values = rng.standard_normal(50_000, dtype=np.float32)
    if kind == "equal":
        values[:] = -2.5
    elif kind == "misleading":
        # Every entry that a sample with an odd stride of about n / 4096 can look at is larger than all others.
        values[::13] = 1e6 * values[::13]
    elif kind == "many sizes":
        values *= 10.0 ** rng.integers(-30, 30, len(values)).astype(np.float32)
    elif kind == "zeros":
        values[100:] = 0.0
    elif kind == "subnormal":
        values *= np.float32(1e-40)
    expected = np.sort(np.abs(values))[-k]
    assert kth_largest_magnitude(values, k) == expected


@quick
@given(st.integers(2, 3000), seeds, st.floats(0.001, 1.0))
def test_the_exact_threshold_selects_at_least_k(elements: int, seed: int, density: float) -> None:
    values = np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)
    k = max(1, int(density * elements))
    indices = np.empty(elements, dtype=np.int32)
    count = select(values, kth_largest_magnitude(values, k), indices)
    assert count == k
    left = np.delete(np.abs(values), indices[:count])
    assert len(left) == 0 or left.max() <= np.abs(values[indices[:count]]).min()


@pytest.mark.parametrize("k", [0, -1, 5])
def test_ranks_outside_the_values_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k = {k} of 4 values: expected 1 to 4"):
        kth_largest_magnitude(np.ones(4, dtype=np.float32), k)


@quick
@given(lengths, st.floats(0.0, 3.0), seeds)
def test_what_is_taken_and_what_remains_make_what_was_there(elements: int, threshold: float, seed: int) -> None:
    residual = some_values(elements, seed)
    before = residual.copy()
    chosen = np.array(selected_positions(residual, threshold), dtype=np.int32)
    values = np.full(len(chosen), np.nan, dtype=np.float32)
    take(residual, chosen, values)
    assert same_bits(values, before[chosen])
    assert same_bits(residual[chosen], np.zeros(len(chosen), dtype=np.float32))
    residual[chosen] = values
    assert same_bits(residual, before)


@quick
@given(lengths, st.floats(0.0, 3.0), seeds, st.sampled_from(HALF_KINDS), st.integers(-130, 120))
def test_what_is_taken_rounded_and_what_remains_make_what_was_there(
    elements: int, threshold: float, seed: int, kind: HalfKind, exponent: int
) -> None:
    with np.errstate(over="ignore", under="ignore"):
        residual = some_values(elements, seed) * np.float32(2.0**exponent)
    before = residual.copy()
    chosen = np.array(selected_positions(residual, threshold), dtype=np.int32)
    codes = np.full(len(chosen), 0xABCD, dtype=np.uint16)
    take_rounded(residual, chosen, codes, kind)
    decoded = np.empty(len(chosen), dtype=np.float32)
    from_half(codes, kind, decoded)
    finite = np.isfinite(before[chosen])
    assert same_bits((residual[chosen] + decoded)[finite], before[chosen][finite])
    assert same_bits(residual[chosen][~finite], np.zeros(int((~finite).sum()), dtype=np.float32))
    np.testing.assert_array_equal(decoded[~finite], before[chosen][~finite])
    rounded = np.empty_like(codes)
    to_half(before[chosen], kind, rounded)
    # Larger ones may need the code before the largest, so that what remains is exact.
    usual = ~(np.abs(before[chosen]) >= 2.0**29)
    assert codes[usual].tolist() == rounded[usual].tolist()
    residual[chosen] = before[chosen]
    assert same_bits(residual, before)


@quick
@given(lengths, seeds)
def test_clearing_sets_only_the_given_positions_to_zero(elements: int, seed: int) -> None:
    velocity = some_values(elements, seed)
    expected = velocity.copy()
    chosen = np.flatnonzero(np.random.default_rng(seed).random(elements) < 0.2).astype(np.int32)
    expected[chosen] = 0.0
    clear(velocity, chosen)
    assert same_bits(velocity, expected)


def test_arrays_of_different_lengths_are_refused_and_nothing_changes() -> None:
    ones = np.ones(4, dtype=np.float32)
    three = np.ones(3, dtype=np.float32)
    indices = np.zeros(4, dtype=np.int32)
    with pytest.raises(ValueError, match="arrays of different lengths"):
        accumulate_select(three, ones, 1.0, indices, STAY)
    with pytest.raises(ValueError, match="arrays of different lengths"):
        accumulate_select(np.ones(4, dtype=np.float32), ones, 1.0, indices, three)
    for short in range(3):
        arrays = [three if i == short else ones for i in range(3)]
        with pytest.raises(ValueError, match="arrays of different lengths"):
            momentum_select(arrays[0], arrays[1], arrays[2], ones, 1.0, indices, STAY, 0.9, 0.1, False, 1.0)
    with pytest.raises(ValueError, match="arrays of different lengths"):
        take(ones, indices, three)
    with pytest.raises(ValueError, match="arrays of different lengths"):
        put_back(ones, indices, three)
    with pytest.raises(ValueError, match="arrays of different lengths"):
        take_rounded(ones, indices, np.zeros(3, dtype=np.uint16), "bf16")
    with pytest.raises(ValueError, match="16-bit kind 'fp32': expected fp16 or bf16"):
        take_rounded(ones, indices, np.zeros(4, dtype=np.uint16), cast(HalfKind, "fp32"))
    assert (ones == 1.0).all()


def test_threads_do_not_disturb_each_other() -> None:
    gradients = [np.random.default_rng(task).standard_normal(50_000, dtype=np.float32) for task in range(4)]
    results: list[tuple[float, list[int]]] = [(0.0, [])] * 4

    def work(task: int) -> None:
        residual = np.zeros(50_000, dtype=np.float32)
        indices = np.empty(50_000, dtype=np.int32)
        threshold = kth_largest_magnitude(gradients[task], 500)
        count = accumulate_select(gradients[task], residual, threshold, indices, STAY)
        results[task] = (threshold, indices[:count].tolist())

    threads = [threading.Thread(target=work, args=(task,)) for task in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for gradient, (threshold, chosen) in zip(gradients, results, strict=True):
        assert threshold == np.sort(np.abs(gradient))[-500]
        assert chosen == selected_positions(gradient, threshold)


def _first_calls() -> None:
    """Have the kernels compiled by the smallest arrays."""
    values = np.zeros(1, dtype=np.float32)
    others = np.zeros((3, 1), dtype=np.float32)
    indices = np.zeros(1, dtype=np.int32)
    accumulate_select(others[0], values, 1.0, indices, others[1])
    momentum_select(others[0], others[1], others[2], values, 1.0, indices, others[1][:0], 0.9, 0.0, False, 1.0)
    select(values, kth_largest_magnitude(values, 1), indices)
    take(values, indices, others[0])
    put_back(values, indices, others[0])
    take_rounded(values, indices, np.zeros(1, dtype=np.uint16), "fp16")
    clear(values, indices)


def test_kernels_compile_once_whatever_arrays_they_get() -> None:
    _first_calls()
    compiled: dict[str, Any] = {
        name: len(value.signatures)
        for name, value in vars(taihu.kernels.selection.select).items()
        if hasattr(value, "signatures")
    }
    gradient, residual = some_values(100, 0), some_values(100, 3)
    indices = np.empty(100, dtype=np.int32)
    accumulate_select(gradient[5:], residual[5:], 0.5, indices, np.empty(100, dtype=np.float32))
    momentum_select(gradient, residual, gradient.copy(), residual.copy(), 0.5, indices, STAY, 0.9, 0.0, True, 1.0)
    count = select(residual, kth_largest_magnitude(residual, 30), indices)
    take(residual, indices[:7], np.empty(7, dtype=np.float32))
    put_back(residual, indices[:7], np.empty(7, dtype=np.float32))
    take_rounded(residual, indices[:count], np.empty(count, dtype=np.uint16), "bf16")
    clear(residual, indices[:count])
    for name, signatures in compiled.items():
        assert len(getattr(taihu.kernels.selection.select, name).signatures) == signatures, name
