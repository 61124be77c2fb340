"""The record that is kept of a run's thresholds."""

from __future__ import annotations

import math

from taihu.compression import UnitReport
from worker.reporting.compression_log import CompressionLog


def test_every_threshold_that_was_made_anew_is_kept_and_the_first_ones_are_not() -> None:
    log = CompressionLog()
    assert log.results() is None
    log.add(UnitReport(1, 0, 0, 100, 10, 10, 0.5, math.nan, refreshed=True))
    log.add(UnitReport(2, 0, 1, 100, 10, 15, 0.5, math.nan, refreshed=False))
    log.add(UnitReport(3, 0, 2, 100, 10, 5, 0.75, 0.5, refreshed=True))
    assert log.results() == {
        "selected_per_kept": {"min": 0.5, "median": 1.0, "max": 1.5},
        "refreshes": {"step": [3], "unit": [0], "age": [2], "drift": [0.5]},
    }
