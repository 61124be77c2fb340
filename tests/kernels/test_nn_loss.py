import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.nn.loss import cross_entropy


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from([np.float32, np.float64]),
    st.integers(1, 9),
    st.integers(2, 12),
    st.sampled_from([0.1, 5.0, 300.0]),
    st.integers(0, 9),
)
def test_cross_entropy_and_its_gradient(dtype: Any, batch: int, classes: int, spread: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((batch, classes)) * spread).astype(dtype)
    labels = generator.integers(0, classes, batch)
    dlogits = np.full_like(logits, np.nan)
    loss = cross_entropy(logits, labels, dlogits)
    losses, gradients = [], []
    for line, label in zip(logits.astype(np.float64), labels, strict=True):
        peak = max(line)
        normaliser = peak + math.log(math.fsum(math.exp(value - peak) for value in line))
        losses.append(normaliser - line[label])
        gradients.append([math.exp(v - normaliser) - (c == label) for c, v in enumerate(line)])
    np.testing.assert_allclose(loss, sum(losses) / batch, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dlogits, np.array(gradients) / batch, rtol=1e-4, atol=1e-6)


def test_a_nan_logit_makes_the_loss_nan() -> None:
    for where in range(3):
        logits = np.zeros((1, 3), np.float32)
        logits[0, where] = np.nan
        for label in range(3):
            assert math.isnan(cross_entropy(logits, np.array([label]), np.empty_like(logits)))
