"""Spreads against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.base.measure import spread

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30)


@settings(deadline=None)
@given(VALUES)
def test_a_spread_is_what_numpy_says(values: list[float]) -> None:
    shown = spread(values)
    assert list(shown) == ["min", "median", "max"]
    assert shown["min"] == np.min(values)
    assert shown["median"] == pytest.approx(np.median(values))
    assert shown["max"] == np.max(values)
    assert shown == spread(sorted(values, reverse=True))
    assert shown["min"] <= shown["median"] <= shown["max"]
