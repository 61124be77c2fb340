"""The record that is kept of a run's thresholds."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from taihu.core.compression import Outcome, Unit
from taihu.worker.reporting.compression_log import CompressionLog

UNITS = (Unit(0, 100, 0, "fc"), Unit(100, 400, 0, "conv2"), Unit(400, 500, 1, "conv1"))


def outcome(
    step: int, units: tuple[Unit, ...], selected: Sequence[int], drifts: Sequence[float], used: int = 0
) -> Outcome:
    """Of every unit 10 entries should be kept."""
    return Outcome(
        step=step,
        units=units,
        elements=np.array([unit.elements for unit in units]),
        kept=np.full(len(units), 10),
        selected=np.array(selected),
        used=np.full(len(units), used),
        thresholds=np.ones(len(units), dtype=np.float32),
        drifts=np.array(drifts),
        refreshed=np.array(drifts) == np.array(drifts),
    )


def test_every_threshold_that_was_made_anew_is_kept_by_layer_and_the_first_ones_are_not() -> None:
    log = CompressionLog()
    assert log.results() is None
    assert log.last_drifts() == []
    log.add(outcome(1, UNITS[:2], [10, 10], [math.nan, math.nan]))
    log.add(outcome(1, UNITS[2:], [10], [math.nan]))
    log.add(outcome(2, UNITS[:2], [15, 10], [math.nan, 0.25], used=1))
    log.add(outcome(2, UNITS[2:], [5], [math.nan], used=1))
    log.add(outcome(3, UNITS[:2], [5, 12], [0.5, 0.125], used=2))
    assert log.last_drifts() == [("fc", 0.5), ("conv2", 0.125)]
    results = log.results()
    assert results is not None
    assert results["selected_per_kept"] == {"min": 0.5, "median": 1.0, "max": 1.5}
    assert results["refreshes"] == {
        "every": 1,
        "step": [2, 3, 3],
        "unit": [1, 0, 1],
        "age": [1, 2, 2],
        "drift": [0.25, 0.5, 0.125],
    }
    rows = [
        ("fc", 100, 3, 1, 0.5, 0.5, 1.0),
        ("conv2", 300, 3, 2, 0.1875, 0.25, 32 / 30),
        ("conv1", 100, 2, 0, None, None, 0.75),
    ]
    keys = ("name", "elements", "updates", "refreshes", "median_drift", "largest_drift", "selected_per_kept")
    assert results["units"] == [dict(zip(keys, row, strict=True)) for row in rows]


def test_other_groups_are_other_rows() -> None:
    log = CompressionLog()
    log.add(outcome(1, (Unit(0, 400, 0, "fc to conv2"),), [10], [math.nan]))
    log.add(outcome(2, (Unit(0, 500, 0, "fc to conv1"),), [10], [math.nan]))
    log.add(outcome(3, (Unit(0, 400, 0, "fc to conv2"),), [10], [0.5]))
    results = log.results()
    assert results is not None
    rows = [(row["name"], row["updates"], row["refreshes"]) for row in units_of(results)]
    assert rows == [("fc to conv2", 2, 1), ("fc to conv1", 1, 0)]


def units_of(results: dict[str, object]) -> list[dict[str, object]]:
    units = results["units"]
    assert isinstance(units, list)
    return units


def test_a_long_run_takes_no_more_memory_than_a_short_one() -> None:
    """Counts are those of all steps, and what is kept is of evenly spaced ones."""
    units = tuple(Unit(10 * place, 10 * place + 10, place, f"layer{place}") for place in range(60))
    log = CompressionLog()
    log.add(outcome(1, units, [10] * 60, [math.nan] * 60))
    steps = 1500
    drifts = np.random.default_rng(1).random((steps, 60))
    tracemalloc.start()
    for step in range(2, steps + 2):
        log.add(outcome(step, units, [10] * 60, drifts[step - 2].tolist(), used=step))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Less than a row for each step that was added, and much less than the rows of its units.
    assert held < 10_000
    results = log.results()
    assert results is not None
    refreshes = results["refreshes"]
    assert isinstance(refreshes, dict)
    every = refreshes["every"]
    assert every == 4
    expected = [step for step in range(2, steps + 2) if step % every == 0]
    assert refreshes["step"] == [step for step in expected for _ in units]
    assert refreshes["unit"] == [place for _ in expected for place in range(60)]
    assert refreshes["age"] == refreshes["step"]
    assert refreshes["drift"] == [drift for step in expected for drift in drifts[step - 2].tolist()]
    for row, largest in zip(units_of(results), drifts.max(axis=0), strict=True):
        assert (row["updates"], row["refreshes"]) == (steps + 1, steps)
        assert row["largest_drift"] == pytest.approx(largest)
