"""Sums of sparse contributions in rank order, and reads, writes and updates at given positions.

Indices are int32 and ascend, each once, as `kernels.packing.unpack` guarantees it; the kernels check no more than the
first and the last one. Received values may begin at any byte, as in `taihu.kernels.reduce`.

To sum, a total (one fp32 per element of the frame, zeros) and marks (one bit per element in uint64 words, zeros) are
kept: the marks say which elements of the total are set, and both are zeros again when the sum has been gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.arrays import read_only
from taihu.kernels.base.bits import trailing_zeros
from taihu.kernels.base.jit import kernel
from taihu.kernels.optim import SgdRule
from taihu.kernels.reduce import packed

# Elements summed at a time: their totals (1 MiB) stay in the cache, wherever in a large frame the positions lie.
_BLOCK = 1 << 18

Indices = NDArray[np.int32]
Values = NDArray[np.float32]
Marks = NDArray[np.uint64]


def make_marks(elements: int) -> Marks:
    """Marks for a total of up to `elements` elements; none is set."""
    return np.zeros((elements + 63) // 64, dtype=np.uint64)


def sum_sparse_in_rank_order(  # noqa: PLR0917 - two inputs, two scratch arrays, two outputs
    contributions: Sequence[tuple[Indices, Values]],
    offset: int,
    total: Values,
    marks: Marks,
    out_indices: Indices,
    out_values: Values,
) -> int:
    """Sum contributions at the union of their positions, element by element in the order given, rounded to fp32.

    The sums are those of `kernels.reduce.sum_in_rank_order` over arrays with zeros elsewhere, bit for bit but for the
    sign of zeros. Nothing is allocated, and the GIL is released.

    Args:
        contributions: for each rank, in rank order, ascending positions and their values, both of shape (k,). All
            positions lie in [offset, offset + len(total)): that the decoder has checked.
        offset: the position of `total[0]`.
        total: shape (n,), fp32, zeros; zeros again on return.
        marks: `make_marks(n)`, or more of them; zeros again on return.
        out_indices: int32; room for the union, min(n, sum of k) at most.
        out_values: fp32; the same room.

    Returns:
        How many positions the union has; so many elements of the outputs are set.

    Raises:
        ValueError: dtypes, shapes or positions do not fit, or the outputs may be too small; `total` and `marks`
            are zeros.
    """
    for indices, values in contributions:
        _check(indices, values, offset, len(total))
    room = min(len(total), sum(len(indices) for indices, _ in contributions))
    _expect_room(total, marks, out_indices, out_values, room)
    if len(contributions) == 1:
        np.copyto(out_indices[:room], contributions[0][0])
        np.copyto(out_values[:room], contributions[0][1])
        return room
    rest = [(read_only(indices), packed(values)) for indices, values in contributions]
    count = 0
    for begin in range(0, len(total), _BLOCK):
        block = total[: min(_BLOCK, len(total) - begin)]
        for rank, (indices, values) in enumerate(rest):
            taken = _scatter_add(indices, values, offset + begin, block, marks)
            rest[rank] = (indices[taken:], values[taken:])
        count += _gather_union(block, marks, offset + begin, out_indices[count:], out_values[count:])
    if any(len(indices) for indices, _ in rest):
        raise ValueError("positions of a contribution: expected ascending ones")
    return count


def scatter_add(indices: Indices, values: Values, offset: int, total: Values, marks: Marks) -> None:
    """Add `values[j]` to `total[indices[j] - offset]`, or assign it where no mark is set yet; sets the marks.

    Raises:
        ValueError: dtypes, shapes or positions do not fit. Nothing has changed.
    """
    _check(indices, values, offset, len(total))
    _expect_room(total, marks, indices, values, 0)
    _scatter_add(read_only(indices), packed(values), offset, total, marks)


def gather_union(total: Values, marks: Marks, offset: int, out_indices: Indices, out_values: Values) -> int:
    """Move the marked elements to `out_values`, their positions, ascending, to `out_indices`; returns their number.

    `total` and `marks` are zeros again.

    Raises:
        ValueError: dtypes or shapes do not fit, or the outputs are too small: what found no room stays marked.
    """
    _expect_room(total, marks, out_indices, out_values, 0)
    count = int(_gather_union(total, marks, offset, out_indices, out_values))
    if count < 0:
        raise ValueError(f"room for {min(len(out_indices), len(out_values))} sums: more elements are marked")
    return count


def scatter_assign(indices: Indices, values: Values, parameters: Values) -> None:
    """Set `parameters[indices[j]] = values[j]`.

    Raises:
        ValueError: dtypes, shapes or positions do not fit. Nothing has changed.
    """
    _check(indices, values, 0, len(parameters))
    _scatter_assign(read_only(indices), packed(values), parameters)


def gather(parameters: Values, indices: Indices, out: Values) -> None:
    """Set `out[j] = parameters[indices[j]]`; `out` has the shape of `indices`.

    Raises:
        ValueError: dtypes, shapes or positions do not fit. Nothing has changed.
    """
    _check(indices, out, 0, len(parameters))
    _gather(packed(parameters), read_only(indices), out)


def _check(indices: Indices, values: Values, offset: int, elements: int) -> None:
    if indices.dtype != np.int32 or values.dtype != np.float32 or indices.ndim != 1 or indices.shape != values.shape:
        raise ValueError(
            f"indices {indices.dtype}{list(indices.shape)} and values {values.dtype}{list(values.shape)}: "
            "expected int32 and float32 of one shape (k,)"
        )
    if len(indices) and not offset <= indices[0] <= indices[-1] < offset + elements:
        raise ValueError(
            f"positions {indices[0]} to {indices[-1]}: expected ascending ones in [{offset}, {offset + elements})"
        )


def _expect_room(total: Values, marks: Marks, out_indices: Indices, out_values: Values, room: int) -> None:
    words = (len(total) + 63) // 64
    if total.dtype != np.float32 or marks.dtype != np.uint64 or len(marks) < words:
        raise ValueError(
            f"total {total.dtype}{list(total.shape)} and marks {marks.dtype}{list(marks.shape)}: "
            f"expected float32 and uint64[{words}]"
        )
    outputs_fit = out_indices.dtype == np.int32 and out_values.dtype == np.float32
    if not outputs_fit or min(len(out_indices), len(out_values)) < room:
        raise ValueError(
            f"outputs {out_indices.dtype}{list(out_indices.shape)} and {out_values.dtype}{list(out_values.shape)}: "
            f"expected int32 and float32 of {room} elements at least"
        )


@kernel
def _scatter_add(indices: Indices, values: NDArray[Any], offset: int, total: Values, marks: Marks) -> int:
    """Add until the first position beyond the total; returns how many were added."""
    for j in range(len(indices)):
        i = indices[j] - offset
        if not 0 <= i < len(total):
            return j
        value = values[j].value
        bit = np.uint64(1) << np.uint64(i & 63)
        word = marks[i >> 6]
        marks[i >> 6] = word | bit
        # Not 0 + value, which would turn -0 into 0.
        total[i] = total[i] + value if word & bit else value
    return len(indices)


@kernel
def _gather_union(total: Values, marks: Marks, offset: int, out_indices: Indices, out_values: Values) -> int:
    room = min(len(out_indices), len(out_values))
    count = 0
    for w in range((len(total) + 63) // 64):
        word = marks[w]
        if word == 0:
            continue
        while word != 0:
            if count == room:
                marks[w] = word
                return -1
            i = 64 * w + trailing_zeros(word)
            out_indices[count] = offset + i
            out_values[count] = total[i]
            total[i] = 0
            count += 1
            word &= word - np.uint64(1)
        marks[w] = 0
    return count


@kernel
def _scatter_assign(indices: Indices, values: NDArray[Any], parameters: Values) -> None:
    for j in range(len(indices)):
        parameters[indices[j]] = values[j].value


@kernel
def _gather(parameters: NDArray[Any], indices: Indices, out: Values) -> None:
    for j in range(len(indices)):
        out[j] = parameters[indices[j]].value


@kernel
def sgd_sparse(parameters: Values, indices: NDArray[np.int32], gradient: Values, rule: SgdRule) -> None:
    """`kernels.optim.sgd` at some positions, without weight decay: `p[i_j] -= learning_rate * (scale * g_j)`.

    `indices` are positions inside `parameters`, int32, each once, of the shape of `gradient`; nothing checks that.
    """
    scale = np.float32(rule.scale)
    rate = np.float32(rule.learning_rate)
    for j in range(len(indices)):
        i = indices[j]
        parameters[i] = parameters[i] - rate * (gradient[j] * scale)
