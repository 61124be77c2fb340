"""Passes over memory: NumPy's results, those of the CPU's kernels, and equal ledgers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.optim import SgdRule, sgd, sgd_momentum
from taihu.kernels.sw26010 import passes
from taihu.kernels.sw26010.errors import BlockingError, LdmOverflowError
from taihu.kernels.sw26010.layer_costs import batch_norm_cost, elementwise_cost, update_cost
from taihu.kernels.sw26010.streams import Pass, plan_stream
from taihu.kernels.sw26010.threshold import select_largest, selection_cost

_elements = st.sampled_from([1, 3, 255, 256, 1000, 16_384, 70_001])
_groups = st.integers(1, 4)


def _random(shape: Any, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(deadline=None, max_examples=20)
@given(_elements, _groups)
def test_elementwise_passes(elements: int, core_groups: int) -> None:
    a, b, out = _random(elements, 0), _random(elements, 1), np.empty(elements, np.float32)
    ledger = passes.ring_add(a, b, out, core_groups=core_groups)
    assert np.array_equal(out, a + b)
    assert ledger == plan_stream(passes.ADD, elements, core_groups=core_groups).cost()
    assert (ledger.dma_bytes, ledger.flops) == (12 * elements, elements)
    cost = elementwise_cost(passes.RELU, passes.RELU_GRADIENT, elements, core_groups=core_groups)
    assert passes.relu(a, out, core_groups=core_groups) == cost.forward
    assert np.array_equal(out, np.maximum(a, 0))
    assert passes.relu_gradient(a, b, out, core_groups=core_groups) == cost.backward
    assert np.array_equal(out, np.where(a > 0, b, 0))


def test_a_sum_may_lie_over_its_operand() -> None:
    a, b = _random(1000, 0), _random(1000, 1)
    expected = a + b
    passes.ring_add(a, b, a)
    assert np.array_equal(a, expected)


@settings(deadline=None, max_examples=10)
@given(_elements, _groups, st.booleans(), st.booleans())
def test_updates_have_the_bits_of_the_cpus(elements: int, core_groups: int, momentum: bool, nesterov: bool) -> None:
    rule = SgdRule(0.5, 0.1, 1e-3, 0.9, nesterov)
    p, g, b = _random(elements, 0), _random(elements, 1), _random(elements, 2) if momentum else None
    expected_p, expected_b = p.copy(), None if b is None else b.copy()
    if expected_b is None:
        sgd(expected_p, g, rule)
    else:
        sgd_momentum(expected_p, g, expected_b, rule)
    ledger = passes.sgd_update(p, g, b, rule, core_groups=core_groups)
    assert np.array_equal(p, expected_p)
    if b is not None and expected_b is not None:
        assert np.array_equal(b, expected_b)
    assert ledger == update_cost(elements, momentum=momentum, core_groups=core_groups)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 700), st.sampled_from([1, 3, 64, 5000]), _groups)
def test_batch_norm_and_its_gradient(rows: int, channels: int, core_groups: int) -> None:
    x, dy = _random((rows, channels), 0) + 30, _random((rows, channels), 1)
    scale, shift = _random(channels, 2), _random(channels, 3)
    y, dx = np.empty_like(x), np.empty_like(x)
    moments, gradients = np.empty((2, channels)), np.empty((2, channels))
    cost = batch_norm_cost(rows, channels, core_groups=core_groups)
    assert passes.batch_norm(x, y, scale, shift, 1e-3, moments, core_groups=core_groups) == cost.forward
    wide = x.astype(np.float64)
    inverse = 1 / np.sqrt(wide.var(axis=0) + 1e-3)
    normal = (wide - wide.mean(axis=0)) * inverse
    np.testing.assert_allclose(moments, [wide.mean(axis=0), wide.var(axis=0)], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(y, normal * scale + shift, rtol=1e-3, atol=5e-4)
    ledger = passes.batch_norm_gradient(x, dy, dx, scale, moments, 1e-3, gradients, core_groups=core_groups)
    assert ledger == cost.backward
    np.testing.assert_allclose(gradients, [(dy * normal).sum(axis=0), dy.sum(axis=0)], rtol=1e-4, atol=1e-3)
    expected = scale * inverse * (dy - dy.mean(axis=0) - normal * (dy * normal).mean(axis=0))
    np.testing.assert_allclose(dx, expected, rtol=1e-2, atol=5e-3)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 300), st.sampled_from([1, 10, 4096]), _groups)
def test_biases_and_their_gradients(rows: int, width: int, core_groups: int) -> None:
    y, bias, sums = _random((rows, width), 0), _random(width, 1), np.empty(width, np.float32)
    expected = y + bias
    passes.add_bias(y, bias, core_groups=core_groups)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
    passes.column_sums(y, sums, core_groups=core_groups)
    np.testing.assert_allclose(sums, y.sum(axis=0, dtype=np.float64), rtol=1e-6, atol=1e-4)


@settings(deadline=None, max_examples=30)
@given(st.data(), st.integers(1, 5000), _groups, st.booleans())
def test_thresholds_are_exact(data: st.DataObject, elements: int, core_groups: int, coarse: bool) -> None:
    values = _random(elements, elements)
    if coarse:
        values = np.round(values)  # many equal magnitudes, and zeros
    k = data.draw(st.integers(1, elements))
    threshold, indices, ledger = select_largest(values, k, core_groups=core_groups)
    kth = np.sort(np.abs(values))[-k]
    assert threshold == kth
    assert np.array_equal(indices, np.flatnonzero(np.abs(values) >= kth))
    assert ledger == selection_cost(elements, len(indices), core_groups)
    # Values are read once at least, entries of 8 bytes written; in fact four times, and by each of 64 CPEs alike.
    assert ledger.compulsory_bytes == 4 * elements + 8 * len(indices)
    fewest = selection_cost(elements, 1, core_groups)
    assert ledger.dma_bytes - fewest.dma_bytes == 8 * 64 * (math.ceil(len(indices) / 64) - 1)
    assert fewest.dma_bytes >= 4 * 4 * elements + 8 * 64
    assert ledger.cycles - fewest.cycles == ledger.dma_cycles - fewest.dma_cycles


def test_a_histogram_is_limited_by_loads_and_stores() -> None:
    assert selection_cost(10_000, 100, 4).limited_by == "pipeline"


@pytest.mark.parametrize("k", [0, 11])
def test_a_rank_outside_of_the_values_is_refused(k: int) -> None:
    with pytest.raises(BlockingError, match=r"expected float32 \(n,\) and k of 1 to n, seen float32 \(10,\)"):
        select_largest(np.ones(10, np.float32), k)


def test_a_row_that_does_not_fit_is_refused() -> None:
    task = Pass("normalize", reads=1, writes=1, arithmetic=1, flops=1)
    with pytest.raises(LdmOverflowError, match="tile normalize: 1 rows, double buffered: asked for 80000 bytes"):
        plan_stream(task, 10, 5000)
    with pytest.raises(BlockingError, match="normalize: expected at least one row"):
        plan_stream(task, 0, 8)
