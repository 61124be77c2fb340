"""Gradients of an update are clipped element by element."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from support import plain_kernels

from taihu.core.optimization import OptimizerShard
from taihu.core.settings import OptimizerSettings
from taihu.core.traits.optimizers import OPTIMIZERS
from taihu.kernels.optim import SgdRule


@pytest.mark.parametrize("cuts", [(0, 60), (0, 17, 18, 60)])
def test_an_update_takes_the_mean_gradient_clipped_element_by_element(cuts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    parameters, total = (rng.standard_normal(60, dtype=np.float32) for _ in range(2))
    wide = parameters.astype(np.float64)
    clipped = np.clip(total.astype(np.float64) / 3, -0.1, 0.1)
    expected, _ = plain_kernels.sgd(wide, clipped, np.zeros(60), SgdRule(1.0, 0.5, 0.01, 0.9, nesterov=False))
    settings = OptimizerSettings(learning_rate=0.5, momentum=0.9, weight_decay=0.01, clip_value=0.1)
    shard = OptimizerShard(settings, parameters)
    assert shard.state_bytes == 2 * parameters.nbytes
    given = total.copy()
    for start, stop in pairwise(cuts):
        shard.update(start, stop, total[start:stop], 1, scale=1 / 3)
    np.testing.assert_allclose(parameters, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(total, given)


def test_clipping_that_does_not_bite_changes_no_bit() -> None:
    rng = np.random.default_rng(3)
    plain, clipped, gradient = (rng.standard_normal(60, dtype=np.float32) for _ in range(3))
    clipped[:] = plain
    OptimizerShard(OptimizerSettings(name=OPTIMIZERS["adam"]), plain).update(0, 60, gradient, 1, scale=0.5)
    OptimizerShard(OptimizerSettings(name=OPTIMIZERS["adam"], clip_value=1e6), clipped).update(
        0, 60, gradient, 1, scale=0.5
    )
    np.testing.assert_array_equal(plain, clipped)
