"""Gradients of layers are clipped each for itself, whatever the loss is scaled by."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.worker.training.clipping import LayerClipping

LAYOUT = Layout(tuple(LayerSpec(f"layer{i}", (TensorSpec("weight", (size,)),)) for i, size in enumerate((5, 1, 40))))


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_each_layer_is_clipped_by_its_own_norm(loss_scale: float) -> None:
    gradients = np.random.default_rng(1).standard_normal(LAYOUT.elements, dtype=np.float32) * np.float32(loss_scale)
    before = gradients.astype(np.float64) / loss_scale
    clipping = LayerClipping(LAYOUT, gradients, 2.5)
    for layer in range(3):
        clipping.clip(layer, loss_scale)
    for start, stop in pairwise(LAYOUT.offsets):
        norm = float(np.linalg.norm(before[start:stop]))
        expected = before[start:stop] * min(1.0, 2.5 / norm)
        np.testing.assert_allclose(gradients[start:stop] / np.float32(loss_scale), expected, rtol=1e-6)
