"""Functions of the C library, as kernels call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import types


def external(symbol: str, signature: Any) -> Callable[..., int]:
    """The function `symbol` of the C library, with numba's `signature`, for kernels; it returns an integer."""
    return cast(Callable[..., int], types.ExternalFunction(symbol, signature))
