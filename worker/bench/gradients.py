"""Gradients for benches in which their values matter: for compression, and for what overflows in 16 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.core.model.layout import Layout

Values = NDArray[np.float32]

# Times the largest loss scale that jobs begin with, the largest of some ten million values still fits into fp16.
_TYPICAL = 1e-3
_SCATTER_OF_LAYERS = 1.0


class DrawnGradients:
    """Values like those of a training: double exponential in every layer, as gradients nearly are, on other scales.

    The scale of a layer is log-normal around 10^-3. What one round draws is not drawn again: each moves the values of
    a layer around by another distance.

    Args:
        layout: the layers.
        seed: of a worker; another one draws other values, on the same scales of layers.
    """

    def __init__(self, layout: Layout, seed: tuple[int, int]) -> None:
        self._rng = np.random.default_rng(seed)
        of_layers = np.random.default_rng(seed[0])
        self.values: Values = np.empty(layout.elements, dtype=np.float32)
        self._bounds = [(layout.offsets[i], layout.offsets[i + 1]) for i in range(len(layout.layers))]
        for start, stop in self._bounds:
            layer = self.values[start:stop]
            self._rng.standard_exponential(dtype=np.float32, out=layer)
            layer -= self._rng.standard_exponential(stop - start, dtype=np.float32)
            layer *= np.float32(_TYPICAL * of_layers.lognormal(0.0, _SCATTER_OF_LAYERS))

    def draw(self, out: Values) -> None:
        """Write the gradients of another round into `out`, shape (elements,)."""
        for start, stop in self._bounds:
            moved = start + int(self._rng.integers(stop - start))
            out[start : start + stop - moved] = self.values[moved:stop]
            out[start + stop - moved : stop] = self.values[start:moved]
