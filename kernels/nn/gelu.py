"""GELU (Hendrycks and Gimpel 2016), exact and by the hyperbolic tangent, with its slope."""

from __future__ import annotations

import math
from typing import Any, Final

from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel

_GRAIN: Final = 1 << 13
_HALF_ROOT: Final = math.sqrt(0.5)
_DENSITY: Final = 1 / math.sqrt(2 * math.pi)
_TANH_FACTOR: Final = math.sqrt(2 / math.pi)
_CUBE: Final = 0.044715


def unary_grains(x: NDArray[Any]) -> int:
    """The number of grains of `x`; a grain is a part of the work of the functions here."""
    return -(-x.size // _GRAIN)


@kernel
def gelu(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any], y: NDArray[Any], approximate: bool, first: int, last: int, lane: int
) -> None:
    """Write y = x Phi(x) for grains `first` to `last` - 1; one-dimensional, `y` may be `x`.

    Phi is the normal distribution's; with `approximate`, (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
    """
    kind = x.dtype.type
    for i in range(first * _GRAIN, min(last * _GRAIN, x.size)):
        value = x[i]
        if approximate:
            inner = kind(_TANH_FACTOR) * (value + kind(_CUBE) * value * value * value)
            share = kind(0.5) * (kind(1) + math.tanh(inner))
        else:
            share = kind(0.5) * (kind(1) + math.erf(value * kind(_HALF_ROOT)))
        y[i] = value * share


@kernel
def gelu_with_slope(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any], y: NDArray[Any], slope: NDArray[Any], approximate: bool, first: int, last: int, lane: int
) -> None:
    """Like `gelu`, and write dy/dx into `slope`, which is no other's memory."""
    kind = x.dtype.type
    for i in range(first * _GRAIN, min(last * _GRAIN, x.size)):
        value = x[i]
        if approximate:
            inner = kind(_TANH_FACTOR) * (value + kind(_CUBE) * value * value * value)
            height = math.tanh(inner)
            share = kind(0.5) * (kind(1) + height)
            rise = kind(_TANH_FACTOR) * (kind(1) + kind(3 * _CUBE) * value * value)
            slope[i] = share + kind(0.5) * value * (kind(1) - height * height) * rise
        else:
            share = kind(0.5) * (kind(1) + math.erf(value * kind(_HALF_ROOT)))
            slope[i] = share + value * kind(_DENSITY) * math.exp(kind(-0.5) * value * value)
        y[i] = value * share


@kernel
def scaled(  # noqa: PLR0917 - arrays, and the part of the work
    dy: NDArray[Any], slope: NDArray[Any], dx: NDArray[Any], first: int, last: int, lane: int
) -> None:
    """Write dx = dy * slope for grains `first` to `last` - 1; one-dimensional, `dx` may be `dy`."""
    source, factor = dy[first * _GRAIN : last * _GRAIN], slope[first * _GRAIN : last * _GRAIN]
    target = dx[first * _GRAIN : last * _GRAIN]
    for i in range(target.size):
        target[i] = source[i] * factor[i]
