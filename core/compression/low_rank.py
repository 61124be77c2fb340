"""PowerSGD: a gradient as the product of two thin matrices (Vogels et al. 2019, algorithms 1 and 2).

A gradient, shape (m, n), with what was held back of those before is M. Workers exchange the mean of P = M Q, of shape
(m, r), by the Q of the step before, and make its columns orthonormal; then that of Q = M' P, of shape (n, r). P Q' is
the mean gradient then; what P and a worker's own Q leave of its M is held back. Any dense exchange brings such means.
Q lies in its arenas by columns, as an array of shape (r, n).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.compression.state import lowered
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.settings import CompressionSettings
from taihu.kernels.low_rank import add_and_project, leave, product, project_rows, warm_up
from taihu.kernels.reduce import all_finite

Values = NDArray[np.float32]


def matrix_of(shape: Sequence[int], rank: int) -> tuple[int, int] | None:
    """Rows and columns of a tensor as a matrix, the first dimension by all others; None where codes are no fewer."""
    rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (0, 0)
    return (rows, columns) if (rows + columns) * rank < rows * columns else None


def powersgd(layout: Layout, settings: CompressionSettings, seed: int) -> LowRank:
    """The coder of the method, see `taihu.core.compression.coding`."""
    return LowRank(layout, settings.rank, seed)


class LowRank:
    """One worker's gradients as codes, a `Coder`: P of a matrix, and the gradient itself of what is none.

    Late layers are Q of each matrix, which is computed when the mean of its P is there.

    Args:
        layout: of the gradients; each layer has one tensor.
        rank: of the products, r.
        seed: of the first Q, the same on all workers.
    """

    def __init__(self, layout: Layout, rank: int, seed: int) -> None:
        warm_up()
        self._offsets = layout.offsets
        shapes = [layer.tensors[0].shape for layer in layout.layers]
        self._matrices = {
            layer: matrix for layer, shape in enumerate(shapes) if (matrix := matrix_of(shape, rank)) is not None
        }
        self._rank = rank
        self._first = {
            layer: _drawn((rank, columns), seed, layout.layers[layer].name)
            for layer, (_, columns) in self._matrices.items()
        }
        self._residual = np.zeros(layout.elements, dtype=np.float32)
        self._rates = np.full(len(shapes), -1.0)
        sizes = [columns * rank for _, columns in self._matrices.values()]
        bounds = pairwise([0, *accumulate(sizes)])
        self._right = np.zeros(sum(sizes), dtype=np.float32)
        self._places = {layer: slice(*each) for layer, each in zip(self._matrices, bounds, strict=True)}
        for layer, first in self._first.items():
            self._right_of(layer)[:] = first
        self._late = {layer: len(shapes) + late for late, layer in enumerate(self._matrices)}
        self.sources = tuple(self._matrices)
        self.layout = _layout_of_codes(layout, self._matrices, rank)

    def follow_rates(self, rates: NDArray[np.float64]) -> None:
        """As of `Coder`."""
        factors = lowered(self._rates, rates)
        self._rates[:] = rates
        for layer in np.flatnonzero(factors != 1.0).tolist():
            self._residual[self._offsets[layer] : self._offsets[layer + 1]] *= factors[layer]

    def encode(self, layer: int, gradient: Values, codes: Values) -> None:
        """As of `Coder`: P is M Q."""
        own = self._codes_of(layer, codes)
        if layer not in self._matrices:
            own[:] = gradient
            return
        matrix = self._held(layer)
        add_and_project(gradient.reshape(matrix.shape), matrix, self._right_of(layer), own.reshape(-1, self._rank))

    def follow(self, late: int, codes: Values) -> None:
        """As of `Coder`: Q is M' P, of the mean P with orthonormal columns."""
        layer = self.sources[late]
        left = self._codes_of(layer, codes).reshape(-1, self._rank)
        own = self._codes_of(self._late[layer], codes).reshape(self._rank, -1)
        matrix = self._held(layer)
        if not all_finite(left.reshape(-1)):
            # All workers see that, and skip the step or end; nothing of it stays.
            own[:] = np.nan
            matrix[~np.isfinite(matrix)] = 0.0
            return
        left[:] = np.linalg.qr(left.astype(np.float64))[0]
        project_rows(matrix, left, own)
        leave(matrix, left, own)

    def decode(self, layer: int, codes: Values, gradient: Values) -> None:
        """As of `Coder`: P Q'."""
        left = self._codes_of(layer, codes)
        if layer not in self._matrices:
            gradient[:] = left
            return
        rows, columns = self._matrices[layer]
        right = self._codes_of(self._late[layer], codes).reshape(self._rank, -1)
        if not all_finite(right.reshape(-1)):
            gradient[:] = np.nan
            return
        product(left.reshape(-1, self._rank), right, gradient.reshape(rows, columns))
        # A row without anything would never have something again.
        kept = self._right_of(layer)
        kept[:] = np.where(right.any(axis=1, keepdims=True), right, self._first[layer])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that outlasts a step, live: `residual`, shape (elements,), `rates`, and `right`, Q of all matrices."""
        own = {"residual": self._residual, "velocity": self._residual[:0]}
        return {**own, "right": self._right, "rates": self._rates}

    def resume(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` gave; without a Q of each matrix by those of the first step.

        Raises:
            ConfigError: it belongs to other gradients.
        """
        residual, right = arrays["residual"], arrays.get("right", self._right[:0])
        if residual.shape != self._residual.shape or right.shape not in (self._right.shape, (0,)):
            raise ConfigError(
                f"the state of compression has {len(residual):,} values and {len(right):,} of factors, expected "
                f"{len(self._residual):,} and {len(self._right):,}: load one of the same parameters and "
                "compression.rank"
            )
        np.copyto(self._residual, residual)
        if len(right):
            np.copyto(self._right, right)
            np.copyto(self._rates, arrays["rates"])

    def _held(self, layer: int) -> Values:
        return self._residual[self._offsets[layer] : self._offsets[layer + 1]].reshape(self._matrices[layer])

    def _right_of(self, layer: int) -> Values:
        return self._right[self._places[layer]].reshape(self._rank, -1)

    def _codes_of(self, layer: int, codes: Values) -> Values:
        offsets = self.layout.offsets
        return codes[offsets[layer] : offsets[layer + 1]]


def _layout_of_codes(layout: Layout, matrices: Mapping[int, tuple[int, int]], rank: int) -> Layout:
    late = 1 + max((layer.kind for layer in layout.layers), default=0)
    early = [
        LayerSpec(each.name, (TensorSpec("P", (matrices[layer][0], rank)),), each.kind) if layer in matrices else each
        for layer, each in enumerate(layout.layers)
    ]
    # Of a kind of their own: they are not there before all of the others are.
    behind = [
        LayerSpec(f"{each.name}, Q", (TensorSpec("Q", (rank, matrices[layer][1])),), late + each.kind)
        for layer, each in enumerate(layout.layers)
        if layer in matrices
    ]
    return Layout((*early, *behind))


def _drawn(shape: tuple[int, int], seed: int, name: str) -> Values:
    return np.random.default_rng((seed, *name.encode())).standard_normal(shape, dtype=np.float32)
