"""LLVM's vector instructions for kernels: how wide they are here, and numba's builders, which have no types."""

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding
import llvmlite.ir
import numba.core.cgutils

ir: Any = llvmlite.ir
cgutils: Any = numba.core.cgutils


def _vector_bytes() -> int:
    features = llvmlite.binding.get_host_cpu_features()
    return next((size for name, size in (("avx512f", 64), ("avx", 32)) if features.get(name)), 16)


VECTOR_BYTES: Final = _vector_bytes()
