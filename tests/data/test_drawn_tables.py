"""Odd tables are read as they were written, or refused in one line: a sample of `inputs.odd_tables`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.inputs.odd_tables import drawn, outcome_of


def test_odd_tables(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        case = drawn(np.random.default_rng([3, number]), folder)
        outcome, words = outcome_of(case)
        assert outcome != "wrong", (case, words)
        counts[outcome] += 1
    assert min(counts["right"], counts["refused"]) >= 15
