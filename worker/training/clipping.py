"""Clipping of each layer's gradient by its norm, as one worker computed it, before it is exchanged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.core.model.layout import Layout
from taihu.kernels.clip import clip_norm


class LayerClipping:
    """Scales gradients of layers whose norm exceeds `largest` down to it.

    Args:
        layout: of the gradients.
        gradients: shape (layout.elements,), fp32; changed in place.
        largest: the largest norm.
    """

    def __init__(self, layout: Layout, gradients: NDArray[np.float32], largest: float) -> None:
        self._offsets = layout.offsets
        self._gradients = gradients
        self._largest = largest
        clip_norm(np.zeros(1, dtype=np.float32), 1.0)  # compiled, or loaded, before the first step

    def clip(self, layer: int, loss_scale: float) -> None:
        """Clip the complete gradient of a layer, which is multiplied by `loss_scale`."""
        clip_norm(self._gradients[self._offsets[layer] : self._offsets[layer + 1]], self._largest * loss_scale)
