from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.selection import slice_sum
from taihu.kernels.selection.slice_sum import is_ascending, keep_largest, merge_add

Indices = NDArray[np.int32]
Values = NDArray[np.float32]
Part = tuple[Indices, Values]
quick = settings(deadline=None, max_examples=100)
sizes = st.one_of(st.sampled_from([1, 2, 64, 65]), st.integers(1, 3000))
densities = st.sampled_from([0.0, 0.01, 0.2, 0.7, 1.0])
seeds = st.integers(0, 10_000)
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 1.0, np.inf, -np.inf, np.nan], dtype=np.float32)


def received(values: Values, begin: int) -> Values:
    """The values as a read-only view that begins `begin` bytes into a message."""
    return np.frombuffer(b"x" * begin + values.tobytes(), dtype=np.float32, offset=begin)


def part(elements: int, density: float, *seed: int) -> Part:
    rng = np.random.default_rng(seed)
    indices = np.flatnonzero(rng.random(elements) < density).astype(np.int32)
    values = (rng.standard_normal(len(indices)) * 10.0 ** rng.integers(-6, 6, len(indices))).astype(np.float32)
    special = rng.random(len(indices)) < 0.2
    values[special] = rng.choice(SPECIAL[:5], int(special.sum()))
    return indices, received(values, seed[-1] % 7)


def same_bits(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()


def merged(a: Part, b: Part) -> Part:
    """The sum, written between guards."""
    room = len(a[0]) + len(b[0])
    out_indices, out_values = np.full(room + 2, -9, np.int32), np.full(room + 2, -9, np.float32)
    count = merge_add(*a, *b, out_indices[1:-1], out_values[1:-1])
    for out in (out_indices, out_values):
        assert (out[[0, -1]] == -9).all()
    return out_indices[1 : count + 1], out_values[1 : count + 1]


def sum_of_dictionaries(a: Part, b: Part) -> Part:
    total = dict(zip(a[0].tolist(), a[1], strict=True))
    for index, value in zip(b[0].tolist(), b[1], strict=True):
        total[index] = total[index] + value if index in total else value
    union = sorted(total)
    return np.array(union, dtype=np.int32), np.array([total[i] for i in union], dtype=np.float32)


@quick
@given(sizes, densities, densities, seeds)
def test_merge_is_the_sum_of_dictionaries_bit_for_bit(elements: int, first: float, second: float, seed: int) -> None:
    a, b = part(elements, first, 1, seed), part(elements, second, 2, seed)
    for left, right in ((a, b), (b, a)):
        indices, values = merged(left, right)
        expected_indices, expected_values = sum_of_dictionaries(left, right)
        assert same_bits(indices, expected_indices)
        assert same_bits(values, expected_values)


def test_merge_keeps_special_values() -> None:
    indices = np.arange(len(SPECIAL), dtype=np.int32)
    alone = merged((indices, SPECIAL), (indices[:0], SPECIAL[:0]))
    assert same_bits(alone[1], SPECIAL)
    largest = np.iinfo(np.int32).max
    ends = np.array([0, largest], dtype=np.int32)
    both = merged((ends, SPECIAL[2:4]), (ends[1:], SPECIAL[2:3]))
    assert both[0].tolist() == [0, largest]
    assert both[1].tolist() == [1.0, 0.0]


def selected_by_sorting(indices: Indices, values: Values, k: int) -> tuple[list[int], list[int]]:
    """Positions kept and rejected, by a plain sort."""
    magnitudes = [float("inf") if np.isnan(v) else abs(float(v)) for v in values]
    order = sorted(range(len(values)), key=lambda j: (not np.isnan(values[j]), -magnitudes[j], indices[j]))
    return sorted(order[:k]), sorted(order[k:])


@quick
@given(sizes, densities, st.integers(1, 1000), seeds, st.booleans())
def test_the_largest_are_those_of_a_sort(elements: int, density: float, k: int, seed: int, equals: bool) -> None:
    indices, values = part(elements, density, 3, seed)
    values = values.copy()
    if equals:
        values = np.random.default_rng(seed).choice(SPECIAL, len(values)).astype(np.float32)
    kept, rejected = selected_by_sorting(indices, values, k)
    own_indices, own_values = indices.copy(), values.copy()
    out_indices, out_values = np.full(len(indices) + 1, -9, np.int32), np.full(len(indices) + 1, -9, np.float32)
    count = keep_largest(own_indices, own_values, k, out_indices[:-1], out_values[:-1])
    assert count == len(kept) == min(k, len(indices))
    assert same_bits(own_indices[:count], indices[kept])
    assert same_bits(own_values[:count], values[kept])
    assert same_bits(out_indices[: len(rejected)], indices[rejected])
    assert same_bits(out_values[: len(rejected)], values[rejected])
    assert out_indices[-1] == out_values[-1] == -9


def test_nans_are_equal_and_largest() -> None:
    values = np.array([np.inf, 0, 0, 0], dtype=np.float32)
    values.view(np.uint32)[1:] = (0x7F800001, 0xFFFFFFFF, 0x7FC00000)
    indices = np.arange(4, dtype=np.int32)
    keep_largest(indices, values, 2, indices.copy(), values.copy())
    assert indices[:2].tolist() == [1, 2]
    assert values.view(np.uint32)[:2].tolist() == [0x7F800001, 0xFFFFFFFF]


@quick
@given(st.lists(st.integers(0, 40), max_size=30))
def test_ascending(numbers: list[int]) -> None:
    for case in (numbers, sorted(numbers), sorted(set(numbers))):
        expected = all(a < b for a, b in pairwise(case))
        assert is_ascending(np.array(case, dtype=np.int32)) is expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices_a": np.zeros(2, np.int64)}, "indices int64"),
        ({"values_a": np.zeros(2, np.float64)}, "values float64"),
        ({"indices_b": np.zeros((2, 1), np.int32)}, r"\[2, 1\]"),
        ({"values_b": np.zeros(3, np.float32)}, "one shape"),
        ({"out_indices": np.zeros(3, np.int32)}, "of 4 elements at least"),
        ({"out_values": np.zeros(3, np.float32)}, "of 4 elements at least"),
        ({"out_values": np.zeros(4, np.float64)}, "outputs int32.* and float64"),
    ],
)
def test_merge_refuses_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    indices, values = np.arange(2, dtype=np.int32), np.ones(2, dtype=np.float32)
    arguments = {
        "indices_a": indices,
        "values_a": values,
        "indices_b": indices,
        "values_b": values,
        "out_indices": np.zeros(4, np.int32),
        "out_values": np.zeros(4, np.float32),
    }
    with pytest.raises(ValueError, match=message):
        merge_add(**{**arguments, **changes})


def test_keep_refuses_what_does_not_fit() -> None:
    indices, values = np.arange(2, dtype=np.int32), np.ones(2, dtype=np.float32)
    with pytest.raises(ValueError, match="k = 0: expected to keep at least 1"):
        keep_largest(indices, values, 0, indices.copy(), values.copy())
    with pytest.raises(ValueError, match="of 2 elements at least"):
        keep_largest(indices, values, 1, indices[:1].copy(), values.copy())
    with pytest.raises(ValueError, match="one shape"):
        keep_largest(indices[:1], values, 1, indices.copy(), values.copy())


def _first_calls() -> None:
    """Have the kernels compiled by the smallest arrays."""
    indices, values = np.arange(2, dtype=np.int32), np.ones(2, dtype=np.float32)
    merge_add(indices[:1], values[:1], indices[1:], values[1:], indices.copy(), values.copy())
    keep_largest(indices, values, 1, indices.copy(), values.copy())
    is_ascending(indices)


def test_kernels_compile_once() -> None:
    _first_calls()
    kernels: tuple[Any, ...] = (slice_sum._merge_add, slice_sum._partition, slice_sum._is_ascending)
    compiled = [len(kernel.signatures) for kernel in kernels]
    a, b = part(100, 0.5, 1, 3), part(100, 0.5, 2, 4)
    indices, values = merged(a, b)
    keep_largest(indices, values, 3, indices.copy(), values.copy())
    is_ascending(a[0])
    assert [len(kernel.signatures) for kernel in kernels] == compiled
