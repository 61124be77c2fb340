"""Arrays as kernels take them: checked, and of one type whatever their flags are, hence with one machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view of `array`."""
    view = array.view()
    view.flags.writeable = False
    return view


def expect(name: str, array: NDArray[Any], dtype: DTypeLike, dimensions: int) -> None:
    """Raise ValueError unless `array`, which messages call so, has this type and so many dimensions."""
    if array.dtype != dtype or array.ndim != dimensions:
        raise ValueError(
            f"{name}: {array.dtype}{list(array.shape)}; expected {np.dtype(dtype)} in {dimensions} dimension(s)"
        )


def expect_bounds(bounds: NDArray[np.int64]) -> None:
    """Raise ValueError unless `bounds` are those of pieces, shape (pieces, 2), int64."""
    expect("bounds", bounds, np.int64, 2)
    if bounds.shape[1] != 2:
        raise ValueError(f"bounds: shape {list(bounds.shape)}; expected [pieces, 2], a start and a stop each")
