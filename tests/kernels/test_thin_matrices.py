"""Kernels of thin matrices beside NumPy's products in fp64."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.kernels.low_rank import add_and_project, leave, product, project_rows


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.one_of(st.integers(1, 40), st.integers(1020, 2060)),
    rank=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_kernels_are_products(*, rows: int, columns: int, rank: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix, gradient = (random.standard_normal((rows, columns)).astype(np.float32) for _ in range(2))
    right = random.standard_normal((rank, columns)).astype(np.float32)
    left = np.full((rows, rank), np.nan, dtype=np.float32)
    total = matrix.astype(np.float64) + gradient
    held = matrix.copy()
    add_and_project(gradient, held, right, left)
    assert held.tobytes() == (matrix + gradient).tobytes()
    np.testing.assert_allclose(left, total @ right.T.astype(np.float64), rtol=1e-4, atol=1e-3)
    seen = np.full_like(right, np.nan)
    project_rows(held, left, seen)
    np.testing.assert_allclose(seen, left.T.astype(np.float64) @ held, rtol=1e-4, atol=1e-2)
    made = np.full_like(matrix, np.nan)
    product(left, right, made)
    np.testing.assert_allclose(made, left.astype(np.float64) @ right, rtol=1e-4, atol=1e-2)
    left_over = held.copy()
    leave(left_over, left, right)
    np.testing.assert_allclose(left_over, held - left.astype(np.float64) @ right, rtol=1e-4, atol=1e-2)
