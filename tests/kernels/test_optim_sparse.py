from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.optim import SgdRule, sgd
from taihu.kernels.selection.scatter import sgd_sparse


@settings(deadline=None, max_examples=80)
@given(
    st.one_of(st.sampled_from([0, 1, 15, 16, 17, 65]), st.integers(0, 3000)),
    st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    st.sampled_from([1.0, 0.5, 1 / 3, 1 / 7]),
    st.sampled_from([0.1, 0.03]),
    st.integers(0, 9999),
)
def test_the_chosen_elements_change_as_by_sgd_without_decay_bit_for_bit(
    elements: int, density: float, scale: float, rate: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parameters = rng.standard_normal(elements, dtype=np.float32)
    gradient = rng.standard_normal(elements, dtype=np.float32)
    chosen = rng.random(elements) < density
    indices = np.flatnonzero(chosen).astype(np.int32)
    everywhere = parameters.copy()
    sgd(everywhere, gradient, SgdRule(scale, rate, 0.0, 0.0, False))
    expected = np.where(chosen, everywhere, parameters)
    selected = gradient[chosen]
    given_gradient = selected.copy()
    sgd_sparse(parameters, indices, selected, SgdRule(scale, rate, 0.5, 0.9, True))
    assert parameters.tobytes() == expected.tobytes()
    np.testing.assert_array_equal(selected, given_gradient)


def test_the_formula_where_every_operation_is_exact() -> None:
    parameters = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    indices = np.array([1, 3], dtype=np.int32)
    sgd_sparse(parameters, indices, np.array([8.0, -16.0], dtype=np.float32), SgdRule(0.25, 0.5, 0.0, 0.0, False))
    np.testing.assert_array_equal(parameters, [1.0, 1.0, 3.0, 6.0])
