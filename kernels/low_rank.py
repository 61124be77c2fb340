"""Products of a matrix with thin ones, and what such a product leaves of it (PowerSGD, Vogels et al. 2019).

Matrices are contiguous fp32: `matrix` of shape (m, n), `left` of (m, r), `right` of (r, n). The kernels release the
GIL, allocate nothing, and pass over `matrix` once; what they read of `right` meanwhile stays in the cache.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part, kernel_reassociating

_COLUMNS: Final = 1024
"""Of a block: so many values of each row of `right` and of one row of `matrix` are in the nearest cache together."""

Matrix = NDArray[np.float32]
Values = NDArray[np.float32]


@kernel_reassociating
def add_and_project(gradient: Matrix, matrix: Matrix, right: Matrix, left: Matrix) -> None:
    """Add `gradient`, of the shape of `matrix`, to it, and set `left` to `matrix @ right.T`."""
    columns = matrix.shape[1]
    for i in range(matrix.shape[0]):
        for j in range(columns):
            matrix[i, j] += gradient[i, j]
        for k in range(right.shape[0]):
            total = np.float32(0.0)
            for j in range(columns):
                total += matrix[i, j] * right[k, j]
            left[i, k] = total


@kernel
def project_rows(matrix: Matrix, left: Matrix, right: Matrix) -> None:
    """Set `right` to `left.T @ matrix`."""
    columns = matrix.shape[1]
    for start in range(0, columns, _COLUMNS):
        stop = min(start + _COLUMNS, columns)
        for k in range(right.shape[0]):
            right[k, start:stop] = np.float32(0.0)
        for i in range(matrix.shape[0]):
            for k in range(right.shape[0]):
                _add_scaled(right[k, start:stop], matrix[i, start:stop], left[i, k])


@kernel
def leave(matrix: Matrix, left: Matrix, right: Matrix) -> None:
    """Subtract `left @ right` from `matrix`."""
    _add_product(matrix, left, right, np.float32(-1.0), from_zero=False)


@kernel
def product(left: Matrix, right: Matrix, matrix: Matrix) -> None:
    """Set `matrix` to `left @ right`."""
    _add_product(matrix, left, right, np.float32(1.0), from_zero=True)


@kernel_part
def _add_product(matrix: Matrix, left: Matrix, right: Matrix, sign: np.float32, from_zero: bool) -> None:
    columns = matrix.shape[1]
    for start in range(0, columns, _COLUMNS):
        stop = min(start + _COLUMNS, columns)
        for i in range(matrix.shape[0]):
            if from_zero:
                matrix[i, start:stop] = np.float32(0.0)
            for k in range(right.shape[0]):
                _add_scaled(matrix[i, start:stop], right[k, start:stop], sign * left[i, k])


@kernel_part
def _add_scaled(target: Values, source: Values, factor: np.float32) -> None:
    for j in range(len(target)):
        target[j] += factor * source[j]


def warm_up() -> None:
    """Compile the kernels, or load them from the disk cache, so that the first step does not wait."""
    matrix, left, right = (np.zeros(shape, dtype=np.float32) for shape in ((2, 2), (2, 1), (1, 2)))
    add_and_project(matrix.copy(), matrix, right, left)
    project_rows(matrix, left, right)
    leave(matrix, left, right)
    product(left, right, matrix)
