from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import plain_kernels

from taihu.kernels.optim import AdamRule, SgdRule, adam, sgd, sgd_momentum

Values = NDArray[np.float32]
quick = settings(deadline=None, max_examples=60)
lengths = st.one_of(st.sampled_from([0, 1, 2, 15, 16, 17, 31, 33, 63, 65]), st.integers(0, 2000))
decays = st.sampled_from([0.0, 1e-4, 0.05])
scales = st.sampled_from([1.0, 0.5, 1 / 3, 1 / 7])


def normal(elements: int, *seed: int) -> Values:
    return np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)


def wide(values: Values) -> NDArray[np.float64]:
    return values.astype(np.float64)


def assert_near(mine: Values, expected: NDArray[np.floating]) -> None:
    """Equal but for the rounding of single operations on values of size up to about 10."""
    np.testing.assert_allclose(mine, expected, rtol=2e-6, atol=2e-6)


def eighths(elements: int, *seed: int) -> Values:
    """Small multiples of 1/8: all sums and products with powers of two are exact, in any order, fused or not."""
    return np.asarray(np.random.default_rng(seed).integers(-400, 400, elements) / 8, dtype=np.float32)


@quick
@given(lengths, st.sampled_from([0.0, 0.5]), st.booleans(), st.integers(0, 99))
def test_sgd_is_exact_where_every_operation_is(elements: int, momentum: float, nesterov: bool, seed: int) -> None:
    rule = SgdRule(0.25, 0.5, 0.125, momentum, nesterov and momentum > 0)
    parameters, gradient, buffer = (eighths(elements, seed, part) for part in range(3))
    expected, expected_buffer = plain_kernels.sgd(wide(parameters), wide(gradient), wide(buffer), rule)
    if momentum:
        sgd_momentum(parameters, gradient, buffer, rule)
        np.testing.assert_array_equal(buffer, expected_buffer)
    else:
        sgd(parameters, gradient, rule)
    np.testing.assert_array_equal(parameters, expected)


sgd_rules = st.builds(
    lambda scale, decay, momentum, nesterov: SgdRule(scale, 0.1, decay, momentum, nesterov and momentum > 0),
    scales,
    decays,
    st.sampled_from([0.0, 0.9, 0.99]),
    st.booleans(),
)
adam_rules = st.builds(
    lambda scale, l2, decoupled, step: AdamRule(scale, 0.01, l2, decoupled, 0.9, 0.999, 1e-8, step),
    scales,
    decays,
    decays,
    st.sampled_from([1, 2, 10, 10_000]),
)


@quick
@given(sgd_rules, lengths, st.integers(0, 99))
def test_sgd_follows_its_oracle(rule: SgdRule, elements: int, seed: int) -> None:
    parameters, gradient, buffer = (normal(elements, seed, part) for part in range(3))
    given_gradient = gradient.copy()
    expected, expected_buffer = plain_kernels.sgd(wide(parameters), wide(gradient), wide(buffer), rule)
    if rule.momentum:
        sgd_momentum(parameters, gradient, buffer, rule)
        assert_near(buffer, expected_buffer)
    else:
        sgd(parameters, gradient, rule)
    assert_near(parameters, expected)
    np.testing.assert_array_equal(gradient, given_gradient)


@quick
@given(adam_rules, lengths, st.integers(0, 99))
def test_adam_follows_its_oracle(rule: AdamRule, elements: int, seed: int) -> None:
    parameters, gradient, exp_avg = (normal(elements, seed, part) for part in range(3))
    exp_avg_sq = normal(elements, seed, 3) ** 2
    given_gradient = gradient.copy()
    expected = plain_kernels.adam(wide(parameters), wide(gradient), wide(exp_avg), wide(exp_avg_sq), rule)
    adam(parameters, gradient, exp_avg, exp_avg_sq, rule)
    for mine, theirs in zip((parameters, exp_avg, exp_avg_sq), expected, strict=True):
        assert_near(mine, theirs)
    np.testing.assert_array_equal(gradient, given_gradient)


def test_the_first_adam_step_moves_every_parameter_by_the_learning_rate() -> None:
    gradient = np.array([1e-3, -1e-3, 5.0, -70.0], dtype=np.float32)
    parameters, exp_avg, exp_avg_sq = (np.zeros(4, dtype=np.float32) for _ in range(3))
    adam(parameters, gradient, exp_avg, exp_avg_sq, AdamRule(1.0, 0.01, 0.0, 0.0, 0.9, 0.999, 1e-8, 1))
    np.testing.assert_allclose(parameters, -0.01 * np.sign(gradient), rtol=2e-5)


def test_decoupled_decay_leaves_the_averages_alone() -> None:
    parameters, exp_avg, exp_avg_sq = np.ones(9, dtype=np.float32), *np.zeros((2, 9), dtype=np.float32)
    adam(
        parameters,
        np.zeros(9, dtype=np.float32),
        exp_avg,
        exp_avg_sq,
        AdamRule(1.0, 0.5, 0.0, 0.5, 0.9, 0.99, 1e-8, 1),
    )
    assert (parameters == 0.75).all()
    assert not exp_avg.any()
    assert not exp_avg_sq.any()


def test_values_that_are_not_finite_stay_where_they_are() -> None:
    parameters, gradient = np.ones(40, dtype=np.float32), np.ones(40, dtype=np.float32)
    gradient[[3, 39]] = np.nan, np.inf
    sgd(parameters, gradient, SgdRule(1.0, 0.5, 0.0, 0.0, False))
    assert np.isnan(parameters[3])
    assert parameters[39] == -np.inf
    assert (np.delete(parameters, [3, 39]) == 0.5).all()


@pytest.mark.parametrize("cut", [1, 7, 16, 33, 500, 1002])
def test_cutting_a_range_changes_no_bit(cut: int) -> None:
    rule = AdamRule(1 / 3, 0.01, 1e-4, 0.01, 0.9, 0.999, 1e-8, 3)
    parameters, gradient, exp_avg, exp_avg_sq = (np.abs(normal(1003, part)) for part in range(4))
    pieces = [array.copy() for array in (parameters, exp_avg, exp_avg_sq)]
    adam(parameters, gradient, exp_avg, exp_avg_sq, rule)
    for start, stop in ((cut, 1003), (0, cut)):
        p, m, v = (piece[start:stop] for piece in pieces)
        adam(p, gradient[start:stop], m, v, rule)
    for piece, whole in zip(pieces, (parameters, exp_avg, exp_avg_sq), strict=True):
        assert piece.tobytes() == whole.tobytes()
