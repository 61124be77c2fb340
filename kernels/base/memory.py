"""Arrays over memory that kernels know by its address alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel_part


def _to_pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


_pointer = cast(Callable[[int], Any], intrinsic(_to_pointer))


@kernel_part
def memory_at(address: int, count: int, dtype: Any) -> NDArray[Any]:
    """The `count` elements of `dtype` that begin at `address`, for kernels; nothing is checked."""
    return carray(_pointer(address), (count,), dtype)
