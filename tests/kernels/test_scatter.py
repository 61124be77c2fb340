from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.reduce import sum_in_rank_order
from taihu.kernels.selection import scatter
from taihu.kernels.selection.scatter import (
    gather,
    gather_union,
    make_marks,
    scatter_add,
    scatter_assign,
    sum_sparse_in_rank_order,
)

Indices = NDArray[np.int32]
Values = NDArray[np.float32]
Contribution = tuple[Indices, Values]
quick = settings(deadline=None, max_examples=80)
sizes = st.one_of(st.sampled_from([0, 1, 63, 64, 65, 127, 128, 129]), st.integers(0, 3000))
densities = st.sampled_from([0.0, 0.003, 0.03, 0.3, 0.9, 1.0])
seeds = st.integers(0, 10_000)
offsets = st.sampled_from([0, 1, 64, 1_000_003])


def received(values: Values, begin: int) -> Values:
    """The values as a read-only view that begins `begin` bytes into a message."""
    return np.frombuffer(b"x" * begin + values.tobytes(), dtype=np.float32, offset=begin)


def same_bits(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()


def contribution(elements: int, density: float, offset: int, *seed: int) -> Contribution:
    """Values so different in size that every other order of summation gives other bits, and some zeros."""
    rng = np.random.default_rng(seed)
    positions = np.flatnonzero(rng.random(elements) < density)
    values = rng.standard_normal(len(positions)) * 10.0 ** rng.integers(-6, 6, len(positions))
    values[rng.random(len(positions)) < 0.05] = -0.0
    return (positions + offset).astype(np.int32), received(values.astype(np.float32), seed[-1] % 7)


def dense(part: Contribution, elements: int, offset: int) -> Values:
    array = np.zeros(elements, dtype=np.float32)
    array[part[0] - offset] = part[1]
    return array


def summed(parts: list[Contribution], elements: int, offset: int) -> Contribution:
    """The sum, from scratch memory that must be, and is left, zero; outputs have room for the union at most."""
    total, marks = np.zeros(elements, dtype=np.float32), make_marks(elements)
    room = min(elements, sum(len(indices) for indices, _ in parts))
    out_indices, out_values = np.full(room + 2, -9, np.int32), np.full(room + 2, -9, np.float32)
    count = sum_sparse_in_rank_order(parts, offset, total, marks, out_indices[1:-1], out_values[1:-1])
    assert not total.view(np.int32).any()
    assert not marks.any()
    for out in (out_indices, out_values):
        assert (out[[0, -1]] == -9).all()
    return out_indices[1 : count + 1], out_values[1 : count + 1]


def assert_is_the_dense_sum(parts: list[Contribution], elements: int, offset: int) -> None:
    indices, values = summed(parts, elements, offset)
    expected = np.empty(elements, dtype=np.float32)
    sum_in_rank_order([dense(part, elements, offset) for part in parts], expected)
    union = np.unique(np.concatenate([part[0] for part in parts]))
    np.testing.assert_array_equal(indices, union)
    # Adding 0 takes away nothing but the sign of a zero.
    assert same_bits(values + np.float32(0), expected[union - offset] + np.float32(0))


@quick
@given(sizes, st.lists(densities, min_size=1, max_size=5), offsets, seeds)
def test_the_sum_is_the_dense_one_bit_for_bit(elements: int, ranks: list[float], offset: int, seed: int) -> None:
    parts = [contribution(elements, density, offset, seed, rank) for rank, density in enumerate(ranks)]
    assert_is_the_dense_sum(parts, elements, offset)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_sum_of_a_large_frame_is_the_dense_one(ranks: int) -> None:
    elements = 700_000
    assert elements > 2 * scatter._BLOCK
    parts = [contribution(elements, 0.01 * rank, 1000, 3, rank) for rank in range(ranks)]
    edges = np.array([scatter._BLOCK + 999, scatter._BLOCK + 1000, 2 * scatter._BLOCK + 1000], dtype=np.int32)
    parts.append((edges, np.ones(3, dtype=np.float32)))
    assert_is_the_dense_sum(parts, elements, 1000)


def test_the_sum_is_taken_from_left_to_right() -> None:
    def of(value: float) -> Contribution:
        return np.arange(5, 45, dtype=np.int32), np.full(40, value, dtype=np.float32)

    assert (summed([of(1e8), of(-1e8), of(1.0)], 60, 0)[1] == 1.0).all()
    assert (summed([of(1.0), of(1e8), of(-1e8)], 60, 0)[1] == 0.0).all()


@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_value_that_only_one_rank_sent_keeps_its_bits(others: int) -> None:
    bits = np.array([0x80000000, 0x7FC01234, 0xFF800000, 0x00000001, 0x3F800001], dtype=np.uint32)
    mine = (np.arange(100, 110, 2, dtype=np.int32), bits.view(np.float32))
    rest = [(np.arange(101, 110, 2, dtype=np.int32), np.ones(5, dtype=np.float32)) for _ in range(others)]
    indices, values = summed([*rest, mine], 20, 95)
    assert same_bits(values[indices % 2 == 0], mine[1])


def test_no_contribution_is_an_empty_sum() -> None:
    assert [len(out) for out in summed([], 100, 0)] == [0, 0]


@quick
@given(sizes, densities, offsets, seeds)
def test_what_was_added_is_gathered_once(elements: int, density: float, offset: int, seed: int) -> None:
    indices, values = contribution(elements, density, offset, seed, 0)
    total, marks = np.zeros(elements, dtype=np.float32), make_marks(elements + 100)
    for _ in range(2):
        scatter_add(indices, values, offset, total, marks)
    np.testing.assert_array_equal(total, dense((indices, values + values), elements, offset))
    out_indices, out_values = np.empty_like(indices), np.empty_like(values)
    assert gather_union(total, marks, offset, out_indices, out_values) == len(indices)
    np.testing.assert_array_equal(out_indices, indices)
    assert same_bits(out_values, values + values)
    assert not total.any()
    assert not marks.any()
    assert gather_union(total, marks, offset, out_indices, out_values) == 0


def test_what_found_no_room_can_be_gathered_later() -> None:
    indices, values = contribution(1000, 0.2, 7, 4, 1)
    total, marks = np.zeros(1000, dtype=np.float32), make_marks(1000)
    scatter_add(indices, values, 7, total, marks)
    out_indices, out_values = np.empty_like(indices), np.empty_like(values)
    half = len(indices) // 2
    with pytest.raises(ValueError, match=f"room for {half} sums: more elements are marked"):
        gather_union(total, marks, 7, out_indices[:half], out_values[:half])
    assert gather_union(total, marks, 7, out_indices[half:], out_values[half:]) == len(indices) - half
    np.testing.assert_array_equal(out_indices, indices)
    assert same_bits(out_values, values)
    assert not total.any()


@quick
@given(st.integers(1, 3000), densities, seeds)
def test_positions_are_written_and_read(elements: int, density: float, seed: int) -> None:
    indices, values = contribution(elements, density, 0, seed, seed)
    parameters = np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)
    expected = parameters.copy()
    for index, value in zip(indices, values, strict=True):
        expected[index] = value
    scatter_assign(indices, values, parameters)
    assert same_bits(parameters, expected)
    out = np.full(len(indices) + 2, 9, dtype=np.float32)
    gather(received(parameters, seed % 5), indices, out[1:-1])
    assert same_bits(out[1:-1], values)
    assert (out[[0, -1]] == 9).all()


def test_threads_do_not_disturb_each_other() -> None:
    parts = [contribution(20_000, 0.1, 0, 1, rank) for rank in range(3)]
    expected = summed(parts, 20_000, 0)
    results: list[Contribution] = []
    threads = [threading.Thread(target=lambda: results.append(summed(parts, 20_000, 0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        assert all(same_bits(left, right) for left, right in zip(result, expected, strict=True))


def arrays() -> dict[str, Any]:
    """Arguments of a good sum of one contribution."""
    return {
        "indices": np.array([10, 12], dtype=np.int32),
        "values": np.ones(2, dtype=np.float32),
        "total": np.zeros(5, dtype=np.float32),
        "marks": make_marks(5),
        "out_indices": np.zeros(4, dtype=np.int32),
        "out_values": np.zeros(4, dtype=np.float32),
    }


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("indices", np.array([10, 12], dtype=np.int64), r"indices int64\[2\]"),
        ("indices", np.array([[10, 12]], dtype=np.int32), r"indices int32\[1, 2\]"),
        ("indices", np.array([9, 12], dtype=np.int32), r"positions 9 to 12: expected ascending ones in \[10, 15\)"),
        ("indices", np.array([10, 15], dtype=np.int32), "positions 10 to 15"),
        ("indices", np.array([12, 10], dtype=np.int32), "positions 12 to 10"),
        ("values", np.ones(2, dtype=np.float64), r"values float64\[2\]"),
        ("values", np.ones(3, dtype=np.float32), r"values float32\[3\]"),
        ("total", np.zeros(5, dtype=np.float64), "total float64"),
        ("marks", np.zeros(0, dtype=np.uint64), r"expected float32 and uint64\[1\]"),
        ("marks", np.zeros(1, dtype=np.int64), "marks int64"),
        ("out_indices", np.zeros(1, dtype=np.int32), "[24] elements at least"),
        ("out_values", np.zeros(1, dtype=np.float32), "[24] elements at least"),
        ("out_indices", np.zeros(4, dtype=np.int64), "outputs int64"),
        ("out_values", np.zeros(4, dtype=np.float64), "and float64"),
    ],
)
def test_bad_arrays_are_refused_before_anything_changes(ranks: int, name: str, wrong: Any, reason: str) -> None:
    good = arrays()
    bad = {**good, name: wrong}
    part, bad_part = (good["indices"], good["values"]), (bad["indices"], bad["values"])
    parts = [part, bad_part][-ranks:]
    with pytest.raises(ValueError, match=reason):
        sum_sparse_in_rank_order(parts, 10, bad["total"], bad["marks"], bad["out_indices"], bad["out_values"])
    assert not good["total"].any()
    assert not good["marks"].any()


@pytest.mark.parametrize("middle", [[14, 11], [30, 11], [-5, 11], [2**31 - 1, -(2**31)]])
def test_positions_that_do_not_ascend_reach_nothing_outside(middle: list[int]) -> None:
    """The decoder lets no such positions through; if they came, memory would still be safe."""
    indices = np.array([10, *middle, 12], dtype=np.int32)
    values = np.ones(4, dtype=np.float32)
    buffer, marks = np.zeros(45, dtype=np.float32), make_marks(5)
    out = np.zeros(5, dtype=np.int32), np.zeros(5, dtype=np.float32)
    parts = [(indices, values), (indices[:1], values[:1])]
    inside = all(10 <= index < 15 for index in middle)
    if inside:
        assert sum_sparse_in_rank_order(parts, 10, buffer[20:25], marks, *out) == 4
    else:
        with pytest.raises(ValueError, match="expected ascending"):
            sum_sparse_in_rank_order(parts, 10, buffer[20:25], marks, *out)
    assert not buffer.any()
    assert not marks.any()


def test_assigned_and_gathered_positions_are_inside() -> None:
    parameters, values = np.zeros(5, dtype=np.float32), np.ones(2, dtype=np.float32)
    for positions in ([0, 5], [-1, 3], [3, 2]):
        indices = np.array(positions, dtype=np.int32)
        with pytest.raises(ValueError, match=r"expected ascending ones in \[0, 5\)"):
            scatter_assign(indices, values, parameters)
        with pytest.raises(ValueError, match=r"expected ascending ones in \[0, 5\)"):
            gather(parameters, indices, values)
    with pytest.raises(ValueError, match="of one shape"):
        gather(parameters, np.zeros(1, dtype=np.int32), values)
    assert not parameters.any()
    assert (values == 1).all()


def _first_calls() -> None:
    """Have the kernels compiled by the smallest arrays."""
    indices = np.zeros(1, dtype=np.int32)
    values = np.zeros(1, dtype=np.float32)
    total = np.zeros(1, dtype=np.float32)
    marks = make_marks(1)
    sum_sparse_in_rank_order([(indices, values)] * 2, 0, total, marks, indices.copy(), values.copy())
    gather(total, indices, values)
    scatter_assign(indices, values, total)


def test_kernels_compile_once_whatever_arrays_they_get() -> None:
    kernels: list[Any] = [scatter._scatter_add, scatter._gather_union, scatter._scatter_assign, scatter._gather]
    _first_calls()
    compiled = [len(kernel.signatures) for kernel in kernels]
    indices, values = contribution(1000, 0.5, 0, 1, 3)
    indices.flags.writeable = False
    summed([(indices, values), (indices.copy(), values.copy())], 1000, 0)
    parameters = np.zeros(1000, dtype=np.float32)
    scatter_assign(indices, values, parameters)
    gather(received(parameters, 1), indices, np.empty_like(values))
    assert [len(kernel.signatures) for kernel in kernels] == compiled
