"""Batches made ahead are the same batches, made while the one before is used."""

from __future__ import annotations

from threading import Event

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.worker.data.ahead import LoadAhead
from taihu.worker.data.base.dataset import ArrayExamples, Dataset
from taihu.worker.data.batches import Batches

INPUTS = np.arange(20, dtype=np.float32)[:, np.newaxis]


class Watched(ArrayExamples):
    """Examples of which the row 13 cannot be read, and that tell how many batches have been read."""

    reads = 0
    second = Event()

    def read(self, rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        Watched.reads += 1
        if Watched.reads == 2:
            Watched.second.set()
        if 13 in rows:
            raise DataError("row 13 cannot be read")
        super().read(rows, out)


def batches(examples: ArrayExamples, batch: int = 4) -> Batches:
    flat = np.zeros(1, np.float32), np.ones(1, np.float32)
    return Batches(
        Dataset("d", examples, examples, (1,), 2, "classes", *flat), batch=batch, workers=1, rank=0, seed=3
    )


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_they_are_the_same_in_any_order(steps: list[int]) -> None:
    examples = ArrayExamples(INPUTS, np.arange(20) % 2)
    with LoadAhead(batches(examples)) as ahead:
        assert ahead.steps_per_epoch == 5
        for step in steps:
            inputs, targets = ahead.batch(step)
            expected = batches(examples).batch(step)
            np.testing.assert_array_equal(inputs, expected[0])
            np.testing.assert_array_equal(targets, expected[1])


def test_the_next_one_is_made_while_one_is_used() -> None:
    Watched.reads = 0
    Watched.second.clear()
    with LoadAhead(batches(Watched(INPUTS[:8], np.arange(8) % 2))) as ahead:
        inputs, _ = ahead.batch(1)
        used = inputs.copy()
        assert Watched.second.wait(120)
        np.testing.assert_array_equal(inputs, used)


def test_what_cannot_be_read_fails_in_its_own_step() -> None:
    examples = Watched(INPUTS, np.arange(20) % 2)
    bad = next(step for step in range(1, 6) if _rows(step) & {13})
    with LoadAhead(batches(examples)) as ahead:
        for step in range(1, bad):
            ahead.batch(step)
        with pytest.raises(DataError, match="row 13 cannot be read"):
            ahead.batch(bad)
        ahead.batch(bad + 1)


def _rows(step: int) -> set[float]:
    return set(batches(ArrayExamples(INPUTS, np.arange(20) % 2)).batch(step)[0][:, 0].tolist())
