"""Axes and texts of values."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.report_runs import parse_value

from taihu.report.axes import log_axis, usual_most, value_axis
from taihu.report.values import BYTES, NUMBER, SECONDS, SHARE, Unit, binned, bins_of

SIZES = st.floats(1e-9, 1e13)
UNITS = st.sampled_from([SECONDS, BYTES, SHARE, NUMBER])


@settings(max_examples=40)
@given(SIZES, SIZES, UNITS)
def test_an_axis_holds_its_values_and_its_ticks_tell_where_they_are(one: float, other: float, unit: Unit) -> None:
    low, high = sorted((one, other))
    axis = value_axis(low, high, unit)
    assert axis.low <= low * (1 + 1e-6)
    assert axis.high >= high * (1 - 1e-6)
    shares = [axis.share(value) for value, _ in axis.ticks]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0)
    assert shares[-1] == pytest.approx(1)
    assert 2 <= len(axis.ticks) <= 8
    assert len({text for _, text in axis.ticks}) == len(axis.ticks)


@settings(max_examples=40)
@given(st.floats(1e-9, 1e9), st.floats(1, 1e6))
def test_a_logarithmic_axis_goes_from_a_power_of_ten_to_another(low: float, ratio: float) -> None:
    axis = log_axis(low, low * ratio, NUMBER)
    assert axis.low <= low * (1 + 1e-6)
    assert axis.high >= low * ratio * (1 - 1e-6)
    assert axis.share(axis.low) == 0
    assert axis.share(axis.high) == 1


@settings(max_examples=40)
@given(st.floats(1e-7, 1e13), UNITS)
def test_a_text_tells_its_value(value: float, unit: Unit) -> None:
    assert parse_value(unit.text(value)) == pytest.approx(value, rel=6e-3)


@settings(max_examples=40)
@given(st.lists(st.none() | st.floats(0, 1), max_size=50), st.integers(1, 20))
def test_bins_cover_every_row_once(values: list[float | None], most: int) -> None:
    bins = bins_of(len(values), most)
    assert [place for each in bins for place in range(each.start, each.stop)] == list(range(len(values)))
    assert len(bins) == min(len(values), most)
    for each, middle in zip(bins, binned(values, bins), strict=True):
        own = [value for value in values[each.start : each.stop] if value is not None]
        assert middle == (median(own) if own else None)


def test_few_values_far_above_the_others_do_not_press_them_flat() -> None:
    assert usual_most([1.0] * 99 + [50.0]) < 2
    assert usual_most([1.0, 2.0, 3.0]) == 3
    assert usual_most([]) == 0
