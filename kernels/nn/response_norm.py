"""Local response normalisation across the channels of the rows of an NHWC activation (Krizhevsky et al. 2012)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part


class Response(NamedTuple):
    """y_c = x_c / s_c ** beta with s_c = k + alpha / size * (sum of x_j ** 2 over the `size` channels around c)."""

    size: int
    alpha: float
    beta: float
    k: float


@kernel_part
def _window_sums(values: NDArray[Any], size: int, sums: NDArray[Any]) -> None:
    """Sums of `size` adjacent values, of which there are size - 1 more than sums."""
    sums[:] = 0
    for j in range(size):
        part = values[j : j + sums.size]
        for c in range(sums.size):
            sums[c] += part[c]


@kernel_part
def _powers(scales: NDArray[Any], beta: float, powers: NDArray[Any]) -> None:
    """Write scales ** -beta."""
    one = scales.dtype.type(1)
    if beta == 0.75:
        for c in range(scales.size):
            root = np.sqrt(scales[c])
            powers[c] = one / (root * np.sqrt(root))
    else:
        for c in range(scales.size):
            powers[c] = scales[c] ** scales.dtype.type(-beta)


@kernel
def response_norm(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any],
    scales: NDArray[Any],
    y: NDArray[Any],
    response: Response,
    scratch: NDArray[Any],
    first: int,
    last: int,
    lane: int,
) -> None:
    """Normalise the rows of samples `first` to `last` - 1.

    Args:
        x: (B, rows, C), C-contiguous.
        scales: written, like `x`: s.
        y: written, like `x`.
        response: the parameters.
        scratch: (lanes, 2, C + size - 1).
        first: the first sample.
        last: behind the last one.
        lane: which part of `scratch` may be used.
    """
    channels, border = x.shape[2], response.size // 2
    share, k = x.dtype.type(response.alpha / response.size), x.dtype.type(response.k)
    squares, powers = scratch[lane, 0], scratch[lane, 1, :channels]
    squares[:] = 0
    inside = squares[border : border + channels]
    for sample in range(first, last):
        for row in range(x.shape[1]):
            source, scale, target = x[sample, row], scales[sample, row], y[sample, row]
            for c in range(channels):
                inside[c] = source[c] * source[c]
            _window_sums(squares, response.size, scale)
            for c in range(channels):
                scale[c] = scale[c] * share + k
            _powers(scale, response.beta, powers)
            for c in range(channels):
                target[c] = source[c] * powers[c]


@kernel
def response_norm_gradient(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any],
    scales: NDArray[Any],
    dy: NDArray[Any],
    dx: NDArray[Any],
    response: Response,
    scratch: NDArray[Any],
    first: int,
    last: int,
    lane: int,
) -> None:
    """Write dx = dy s^-beta - 2 alpha beta / size * x * (sum of dy_j x_j s_j^(-beta - 1) over the channels around).

    Args:
        x: (B, rows, C), C-contiguous.
        scales: as `response_norm` wrote them.
        dy: like `x`.
        dx: written, like `x`; may be `dy`.
        response: the parameters.
        scratch: (lanes, 3, C + size - 1).
        first: the first sample.
        last: behind the last one.
        lane: which part of `scratch` may be used.
    """
    channels, border = x.shape[2], response.size // 2
    share = x.dtype.type(2 * response.alpha * response.beta / response.size)
    products, powers, sums = scratch[lane, 0], scratch[lane, 1, :channels], scratch[lane, 2, :channels]
    products[:] = 0
    inside = products[border : border + channels]
    for sample in range(first, last):
        for row in range(x.shape[1]):
            source, scale = x[sample, row], scales[sample, row]
            gradient, target = dy[sample, row], dx[sample, row]
            _powers(scale, response.beta, powers)
            for c in range(channels):
                inside[c] = gradient[c] * source[c] * powers[c] / scale[c]
            _window_sums(products, response.size, sums)
            for c in range(channels):
                target[c] = gradient[c] * powers[c] - share * source[c] * sums[c]
