"""The one way kernels are compiled: without the GIL, cached on disk, in IEEE order unless asked otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["kernel", "kernel_reassociating"]

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


def kernel(function: F) -> F:
    """Compile `function`; fused multiply-adds are allowed, reordering of sums is not."""
    return cast(F, numba.njit(fastmath={"contract"}, **_OPTIONS)(function))


def kernel_reassociating(function: F) -> F:
    """Compile `function` with vectorised reductions: same bits on one kind of machine, not source order."""
    return cast(F, numba.njit(fastmath={"contract", "reassoc", "nsz"}, **_OPTIONS)(function))
