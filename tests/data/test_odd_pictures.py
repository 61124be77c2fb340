"""Odd pictures are read as a viewer shows them, or refused by name: a sample of `inputs.odd_pictures`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.inputs.odd_pictures import drawn, outcome_of
from benchmarks.inputs.pictures import WAYS


@pytest.mark.parametrize("name", WAYS)
def test_odd_pictures(tmp_path: Path, name: str) -> None:
    case = drawn(np.random.default_rng([3, list(WAYS).index(name)]), name, tmp_path)
    outcome, words = outcome_of(case)
    assert outcome != "wrong", (case.words, words)
    assert not words.startswith("could be read"), (case.words, words)
    assert outcome == "refused" or not case.way.refused
