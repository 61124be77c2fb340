import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.nn.loss import binary_cross_entropy, cross_entropy, smoothed_cross_entropy, squared_error


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


_DTYPES = st.sampled_from([np.float32, np.float64])
_SEEDS = st.integers(0, 9)
_SPREADS = st.sampled_from([0.1, 5.0, 300.0])


@settings(deadline=None, max_examples=30)
@given(_DTYPES, st.tuples(st.integers(1, 9), st.integers(1, 12)), st.sampled_from([0.0, 0.1, 0.9]), _SPREADS, _SEEDS)
def test_smoothed_cross_entropy_and_its_gradient(
    dtype: Any, shape: tuple[int, int], smoothing: float, spread: float, seed: int
) -> None:
    batch, classes = shape
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal(shape) * spread).astype(dtype)
    labels = generator.integers(0, classes, batch)
    dlogits = np.full_like(logits, np.nan)
    loss = smoothed_cross_entropy(logits, labels, smoothing, dlogits)
    # PyTorch's definition: the cross entropy against a distribution
    targets = np.full((batch, classes), smoothing / classes)
    targets[np.arange(batch), labels] += 1 - smoothing
    wide = logits.astype(np.float64)
    peaks = wide.max(axis=1, keepdims=True)
    logs = wide - peaks - np.log(np.exp(wide - peaks).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(loss, -(targets * logs).sum() / batch, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dlogits, (np.exp(logs) - targets) / batch, rtol=1e-4, atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(_DTYPES, st.integers(1, 9), st.integers(1, 7), _SPREADS, st.integers(0, 9))
def test_squared_error_and_its_gradient(dtype: Any, batch: int, width: int, spread: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    outputs = (generator.standard_normal((batch, width)) * spread).astype(dtype)
    targets = generator.standard_normal((batch, width)).astype(np.float32)
    doutputs = np.full_like(outputs, np.nan)
    difference = outputs.astype(np.float64) - targets
    np.testing.assert_allclose(squared_error(outputs, targets, doutputs), np.mean(difference**2), rtol=1e-12)
    np.testing.assert_allclose(doutputs, 2 * difference / difference.size, rtol=1e-6)


@settings(deadline=None, max_examples=30)
@given(_DTYPES, st.integers(1, 9), st.integers(1, 7), _SPREADS, st.integers(0, 9))
def test_binary_cross_entropy_and_its_gradient(dtype: Any, batch: int, width: int, spread: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((batch, width)) * spread).astype(dtype)
    targets = generator.choice([0.0, 0.25, 1.0], (batch, width)).astype(np.float32)
    dlogits = np.full_like(logits, np.nan)
    loss = binary_cross_entropy(logits, targets, dlogits)
    wide = logits.astype(np.float64)
    # t log(1 + e^-z) + (1 - t) log(1 + e^z)
    expected = targets * np.logaddexp(0, -wide) + (1 - targets) * np.logaddexp(0, wide)
    np.testing.assert_allclose(loss, expected.mean(), rtol=1e-9, atol=1e-12)
    share = np.exp(-np.logaddexp(0, -wide))
    np.testing.assert_allclose(dlogits, (share - targets) / wide.size, rtol=1e-5, atol=1e-9)


def test_a_nan_output_makes_every_loss_nan() -> None:
    for where in range(3):
        outputs = np.zeros((1, 3), np.float32)
        outputs[0, where] = np.nan
        targets, written = np.zeros((1, 3), np.float32), np.empty_like(outputs)
        assert math.isnan(squared_error(outputs, targets, written))
        assert math.isnan(binary_cross_entropy(outputs, targets, written))
        for label in range(3):
            assert math.isnan(smoothed_cross_entropy(outputs, np.array([label]), 0.1, written))
