"""Sums of two sparse slices in one pass, and what of a slice is largest: the steps of a sparse allreduce.

A slice is ascending positions, each once, int32 of shape (k,), and their values, fp32 of shape (k,). Received values
may begin at any byte, as in `taihu.kernels.reduce`. The kernels release the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.arrays import read_only
from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.reduce import packed
from taihu.kernels.selection.select import kth_largest_magnitude

Indices = NDArray[np.int32]
Values = NDArray[np.float32]

_MAGNITUDE = np.int32(0x7FFFFFFF)
# The smallest NaN; as a magnitude it stands for all of them, so that NaNs are equal to each other.
_NAN = np.int32(0x7F800001)


def merge_add(  # noqa: PLR0917 - two slices and the outputs
    indices_a: Indices,
    values_a: Values,
    indices_b: Indices,
    values_b: Values,
    out_indices: Indices,
    out_values: Values,
) -> int:
    """Write the union of two slices, ascending; where both have a position, the value is `a + b`, rounded to fp32.

    Nothing is allocated. A value that only one slice has keeps its bits.

    Args:
        indices_a: shape (k_a,), int32, ascending, each once; not checked.
        values_a: shape (k_a,), fp32.
        indices_b: shape (k_b,), as `indices_a`.
        values_b: shape (k_b,), fp32.
        out_indices: int32, room for k_a + k_b positions; shares no memory with the inputs.
        out_values: fp32, room for as many; shares no memory with the inputs.

    Returns:
        How many positions the union has; so many elements of the outputs are set, the others hold anything.

    Raises:
        ValueError: dtypes or shapes do not fit, or an output is too small. Nothing has changed.
    """
    _expect_slice(indices_a, values_a)
    _expect_slice(indices_b, values_b)
    _expect_room(out_indices, out_values, len(indices_a) + len(indices_b))
    return int(
        _merge_add(
            read_only(indices_a), packed(values_a), read_only(indices_b), packed(values_b), out_indices, out_values
        )
    )


def keep_largest(indices: Indices, values: Values, k: int, rejected_indices: Indices, rejected_values: Values) -> int:
    """Move the k entries of largest |value| to the front of a slice, and the others to `rejected_*`, all ascending.

    Of equal magnitudes the lower position is kept. NaN is larger than everything, and as large as every other NaN.
    Less than 20 KiB are allocated, whatever the size is.

    Args:
        indices: shape (n,), int32, ascending; changed in place.
        values: shape (n,), fp32, aligned; changed in place.
        k: how many to keep, at least 1.
        rejected_indices: int32, room for n positions; shares no memory with the slice.
        rejected_values: fp32, room for as many; shares no memory with the slice.

    Returns:
        min(k, n): how many are kept; the first n - min(k, n) elements of `rejected_*` are set.

    Raises:
        ValueError: dtypes or shapes do not fit, an output is too small, or k is less than 1. Nothing has changed.
    """
    _expect_slice(indices, values)
    _expect_room(rejected_indices, rejected_values, len(indices))
    if k < 1:
        raise ValueError(f"k = {k}: expected to keep at least 1")
    if len(indices) > k:
        least = np.float32(kth_largest_magnitude(values, k)).view(np.int32)
        _partition(indices, values, k, least, rejected_indices, rejected_values)
    return min(k, len(indices))


def is_ascending(indices: Indices) -> bool:
    """Whether `indices` (shape (k,), int32) ascend, each once."""
    return bool(_is_ascending(read_only(indices)))


def _expect_slice(indices: Indices, values: Values) -> None:
    if indices.dtype != np.int32 or values.dtype != np.float32 or indices.ndim != 1 or indices.shape != values.shape:
        raise ValueError(
            f"indices {indices.dtype}{list(indices.shape)} and values {values.dtype}{list(values.shape)}: "
            "expected int32 and float32 of one shape (k,)"
        )


def _expect_room(indices: Indices, values: Values, room: int) -> None:
    fits = indices.dtype == np.int32 and values.dtype == np.float32
    if not fits or min(len(indices), len(values)) < room:
        raise ValueError(
            f"outputs {indices.dtype}{list(indices.shape)} and {values.dtype}{list(values.shape)}: "
            f"expected int32 and float32 of {room} elements at least"
        )


@kernel
def _merge_add(  # noqa: PLR0917 - two slices and the outputs
    indices_a: Indices,
    values_a: NDArray[Any],
    indices_b: Indices,
    values_b: NDArray[Any],
    out_indices: Indices,
    out_values: Values,
) -> int:
    i, j, count = np.uint64(0), np.uint64(0), np.uint64(0)
    # Selections instead of branches: which slice is next is as good as random, and would be mispredicted.
    while i < len(indices_a) and j < len(indices_b):
        a, b = indices_a[i], indices_b[j]
        left, right = values_a[i].value, values_b[j].value
        out_indices[count] = min(a, b)
        alone = left if a < b else right
        out_values[count] = np.float32(left + right) if a == b else alone
        i += np.uint64(a <= b)
        j += np.uint64(b <= a)
        count += np.uint64(1)
    count = _append(indices_a, values_a, i, out_indices, out_values, count)
    return int(_append(indices_b, values_b, j, out_indices, out_values, count))


@kernel_part
def _append(  # noqa: PLR0917 - a slice and where it begins, the outputs and where they end
    indices: Indices,
    values: NDArray[Any],
    begin: np.uint64,
    out_indices: Indices,
    out_values: Values,
    count: np.uint64,
) -> np.uint64:
    while begin < len(indices):
        out_indices[count] = indices[begin]
        out_values[count] = values[begin].value
        begin += np.uint64(1)
        count += np.uint64(1)
    return count


@kernel
def _partition(  # noqa: PLR0917 - a slice, a selection, the outputs
    indices: Indices, values: Values, k: int, least: np.int32, rejected_indices: Indices, rejected_values: Values
) -> None:
    bits = values.view(np.int32)
    threshold = min(least, _NAN)
    larger = np.int64(0)
    for i in range(len(bits)):
        larger += min(np.int32(bits[i] & _MAGNITUDE), _NAN) > threshold
    equals = k - larger
    kept, rejected = np.uint64(0), np.uint64(0)
    # Every entry is written to both sides, and counted on one of them: that spares branches as good as random.
    for i in range(len(bits)):
        index, word = indices[i], bits[i]
        magnitude = min(np.int32(word & _MAGNITUDE), _NAN)
        equal = magnitude == threshold
        keep = (magnitude > threshold) | (equal & (equals > 0))
        equals -= equal
        rejected_indices[rejected], rejected_values[rejected] = index, values[i]
        indices[kept], bits[kept] = index, word
        kept += np.uint64(keep)
        rejected += np.uint64(not keep)


@kernel
def _is_ascending(indices: Indices) -> bool:
    ascending = True
    # An early exit would keep the loop from being vectorised, and nearly all slices ascend.
    for i in range(1, len(indices)):
        ascending &= indices[i - 1] < indices[i]
    return ascending
