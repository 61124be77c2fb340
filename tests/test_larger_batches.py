"""The benchmark of larger batches: what it plans, and the table that it shows."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.exchange.larger_batches import planned, planned_bytes, settings_of, table
from benchmarks.models.paced import build
from taihu.core.base.errors import ConfigError
from taihu.worker.engine import Model

LIMIT = 15e6


def test_more_workers_have_room_for_larger_batches() -> None:
    batches = [planned(2, workers, LIMIT)[0] for workers in (2, 4, 8)]
    assert batches[0] < batches[1] < batches[2]
    assert planned_bytes(2, 8, batches[2]) <= LIMIT < planned_bytes(2, 8, batches[2] + 1)


def test_a_limit_that_is_too_low_is_an_error_in_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"--limit: a worker of 2 takes \d+ bytes for one sample in stage 2"
    ) as told:
        planned(2, 2, 1e6)
    assert len(str(told.value).splitlines()) == 1


def test_the_model_holds_and_takes_what_it_says() -> None:
    model = Model(build((16, 16, 1), 10), (16, 16, 1), 10)
    paced = [layer for layer in model.chain if type(layer).__name__ == "Paced"]
    assert len(paced) == 4
    assert model.layout.elements == 257 * 512 + 4 * 513 * 512 + 513 * 10
    assert settings_of(2, 4, 7, 1)["cluster.workers"] == 4


def row(zero: int, workers: int, batch: int, step: float) -> dict[str, Any]:
    return {
        "zero": zero,
        "workers": workers,
        "batch": batch,
        "planned_bytes": 11_900_000,
        "seconds_per_step": step,
        "seconds_wait": step / 2,
        "samples_per_second": workers * batch / step,
    }


def test_over_linear_is_of_the_stages_first_row() -> None:
    shown = table([row(2, 2, 10, 0.5), row(2, 4, 20, 0.5), row(3, 2, 10, 1.0)]).splitlines()
    assert shown[2] == "| 2 | 2 | 10 | 0.500 | 40.0 | 1.00 |"
    assert shown[3].endswith("| 160.0 | 2.00 |")
    assert shown[4].endswith("| 20.0 | 1.00 |")
