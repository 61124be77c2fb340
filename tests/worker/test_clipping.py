"""Gradients of layers are clipped each for itself, whatever the loss is scaled by; updates, element by element."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kernels import oracles
from kernels.optim import SgdRule
from taihu.layout import LayerSpec, Layout, TensorSpec
from taihu.optimization import OptimizerShard
from taihu.settings import OptimizerSettings
from worker.training.clipping import LayerClipping

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


@pytest.mark.parametrize("cuts", [(0, 60), (0, 17, 18, 60)])
def test_an_update_takes_the_mean_gradient_clipped_element_by_element(cuts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    parameters, total = (rng.standard_normal(60, dtype=np.float32) for _ in range(2))
    wide = parameters.astype(np.float64)
    clipped = np.clip(total.astype(np.float64) / 3, -0.1, 0.1)
    expected, _ = oracles.sgd(wide, clipped, np.zeros(60), SgdRule(1.0, 0.5, 0.01, 0.9, nesterov=False))
    settings = OptimizerSettings(learning_rate=0.5, momentum=0.9, weight_decay=0.01, clip_value=0.1)
    shard = OptimizerShard(settings, parameters)
    given = total.copy()
    for start, stop in pairwise(cuts):
        shard.update(start, stop, total[start:stop], 1, scale=1 / 3)
    np.testing.assert_allclose(parameters, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(total, given)


def test_clipping_that_does_not_bite_changes_no_bit() -> None:
    rng = np.random.default_rng(3)
    plain, clipped, gradient = (rng.standard_normal(60, dtype=np.float32) for _ in range(3))
    clipped[:] = plain
    OptimizerShard(OptimizerSettings(name="adam"), plain).update(0, 60, gradient, 1, scale=0.5)
    OptimizerShard(OptimizerSettings(name="adam", clip_value=1e6), clipped).update(0, 60, gradient, 1, scale=0.5)
    np.testing.assert_array_equal(plain, clipped)
