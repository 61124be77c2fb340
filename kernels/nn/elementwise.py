"""Rectifier, bias and dropout: one pass over an activation."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part

_GRAIN: Final = 1 << 15

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def grains(x: NDArray[Any]) -> int:
    """The number of grains of `x`; a grain is a part of the work of functions that take `first` and `last`."""
    return -(-x.size // _GRAIN)


@kernel_part
def _part(x: NDArray[Any], first: int, last: int) -> NDArray[Any]:
    # A loop over a view from its beginning is vectorised; one from anywhere might have negative indices.
    return x[first * _GRAIN : last * _GRAIN]


@kernel
def relu(x: NDArray[Any], y: NDArray[Any], first: int, last: int, lane: int) -> None:
    """Rectify grains `first` to `last` - 1, y = max(x, 0); NaN stays NaN; one-dimensional, `y` may be `x`."""
    zero = x.dtype.type(0)
    source, target = _part(x, first, last), _part(y, first, last)
    for i in range(source.size):
        value = source[i]
        target[i] = zero if value < zero else value


@kernel
def relu_gradient(  # noqa: PLR0917 - arrays, and the part of the work
    y: NDArray[Any], dy: NDArray[Any], dx: NDArray[Any], first: int, last: int, lane: int
) -> None:
    """Dx = dy where the rectified output `y` is positive, else 0; one-dimensional, `dx` may be `dy`."""
    zero = dy.dtype.type(0)
    output, source, target = _part(y, first, last), _part(dy, first, last), _part(dx, first, last)
    for i in range(output.size):
        # An unconditional load: a conditional one would keep the loop from being vectorised.
        gradient = source[i]
        target[i] = zero if output[i] <= zero else gradient


@kernel
def add(  # noqa: PLR0917 - arrays, and the part of the work
    a: NDArray[Any], b: NDArray[Any], y: NDArray[Any], first: int, last: int, lane: int
) -> None:
    """Y = a + b; one-dimensional, `y` may be one of them."""
    one, other, target = _part(a, first, last), _part(b, first, last), _part(y, first, last)
    for i in range(target.size):
        target[i] = one[i] + other[i]


@kernel
def add_rectified(  # noqa: PLR0917 - arrays, and the part of the work
    a: NDArray[Any], b: NDArray[Any], y: NDArray[Any], first: int, last: int, lane: int
) -> None:
    """Y = max(a + b, 0); NaN stays NaN; one-dimensional, `y` may be one of them."""
    zero = y.dtype.type(0)
    one, other, target = _part(a, first, last), _part(b, first, last), _part(y, first, last)
    for i in range(target.size):
        value = one[i] + other[i]
        target[i] = zero if value < zero else value


@kernel
def add_bias(y: NDArray[Any], bias: NDArray[Any]) -> None:
    """Add `bias` (N,) to every row of `y` (M, N)."""
    for row in range(y.shape[0]):
        line = y[row]
        for i in range(bias.size):
            line[i] += bias[i]


@kernel
def column_sums(x: NDArray[Any], sums: NDArray[np.float64]) -> None:
    """Write the sum of every column of `x` (M, N) into `sums` (N,), from the first row to the last, in float64."""
    sums[:] = 0
    for row in range(x.shape[0]):
        line = x[row]
        for i in range(sums.size):
            sums[i] += line[i]


@kernel_part
def _mix(value: np.uint64) -> np.uint64:
    """The output function of splitmix64: every input bit flips half of the output bits."""
    value = (value ^ (value >> _SHIFTS[0])) * _MULTIPLIER_1
    value = (value ^ (value >> _SHIFTS[1])) * _MULTIPLIER_2
    return value ^ (value >> _SHIFTS[2])


@kernel
def dropout_key(seed: int, step: int, layer: int) -> int:
    """The key of the masks of one layer in one step; all arguments are int64, and so is the result."""
    key = _mix(_mix(_mix(np.uint64(seed) + _GOLDEN) + np.uint64(step)) + np.uint64(layer))
    return int(np.int64(key))


@kernel
def dropout(  # noqa: PLR0917 - two arrays, a rate, what the mask depends on
    x: NDArray[Any], y: NDArray[Any], rate: float, key: int, samples: NDArray[np.int64], first_element: int
) -> None:
    """Zero elements with probability `rate` and divide the others by 1 - rate.

    The fate of an element depends on the key, the index of its sample in the global batch and its index in the sample
    alone: neither on the number of workers nor on earlier calls. The map is linear: the same call takes dy to dx.

    Args:
        x: (B, E), C-contiguous.
        y: written, like `x`; may be `x`.
        rate: 0 <= rate < 1.
        key: from `dropout_key`.
        samples: (B,), index of each row in the global batch.
        first_element: index of column 0 in a sample.
    """
    zero = x.dtype.type(0)
    scale = x.dtype.type(1.0 / (1.0 - rate))
    threshold = np.uint64(rate * 2.0**64)
    for b in range(x.shape[0]):
        state = _mix(np.uint64(key) + _GOLDEN * np.uint64(samples[b] + 1)) + _GOLDEN * np.uint64(first_element)
        for e in range(x.shape[1]):
            state += _GOLDEN
            y[b, e] = x[b, e] * scale if _mix(state) >= threshold else zero
