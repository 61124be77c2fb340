"""A step's numbers follow from its instants."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import pytest
import structlog

from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.serving.metrics import WorkerMetrics
from taihu.worker.exchange.times import GroupTimes
from taihu.worker.reporting.activity import Activity
from taihu.worker.reporting.observer import Observer
from taihu.worker.reporting.run_log import RunLog
from taihu.worker.sw26010 import ModelledStep
from taihu.worker.training.step_record import StepRecord


def record() -> StepRecord:
    """Forward until 3 s, 1 s of it waiting; two groups, compressed after one another, the second after backward."""
    return StepRecord(
        step=4,
        serial=False,
        steady=True,
        start_s=10.0,
        loss=0.5,
        forward_end_s=13.0,
        backward_end_s=15.0,
        end_s=15.0,
        waited_in_forward_s=1.0,
        waited_s=1.0,
        ready_s=[13.5, 14.25, 15.0],
        times=[
            GroupTimes(
                60, ready_s=14.25, compress_s=0.5, selected=6, submitted_s=14.75, answered_s=16.0, bytes_up=50
            ),
            GroupTimes(
                40, ready_s=15.0, compress_s=0.25, selected=2, submitted_s=15.25, answered_s=17.0, bytes_down=7
            ),
        ],
    )


def test_waiting_is_part_of_neither_forward_nor_compute() -> None:
    assert record().forward_seconds == 2.0
    sample = record().sample()
    assert (sample.step_seconds, sample.compute_seconds, sample.wait_seconds) == (5.0, 4.0, 1.0)


def test_backward_is_told_layer_by_layer() -> None:
    assert record().backward_seconds == [0.5, 0.75, 0.75]
    assert sum(record().backward_seconds) == pytest.approx(15.0 - 13.0)


def test_a_modelled_step_reports_modelled_compute_and_keeps_what_was_measured() -> None:
    modelled = record()
    modelled.modelled = ModelledStep(0.25, (0.125, 0.5, 0.0625))
    assert modelled.forward_seconds == 0.25
    assert modelled.backward_seconds == [0.125, 0.5, 0.0625]
    assert modelled.sample() == record().sample()


def test_compression_counts_in_all_and_as_far_as_it_came_after_backward() -> None:
    sample = record().sample()
    assert (sample.compress_seconds, sample.compress_wait_seconds) == (0.75, 0.25)


def test_the_exchange_lasts_from_the_first_gradient_to_the_last_answer() -> None:
    sample = record().sample()
    assert sample.exchange_seconds == 17.0 - 14.25
    assert (sample.sent_bytes, sample.received_bytes, sample.selected_ratio) == (50, 7, 8 / 100)


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_step_is_put_into_words_only_for_those_who_read_them(level: int) -> None:
    lines: list[dict[str, Any]] = []

    def keep(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        lines.append(dict(line))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(level))
    try:
        run_log = RunLog([], steps_per_epoch=1, learning_rate=lambda _: 0.1)
        activity = Activity(SystemClock())
        observer = Observer(0, total_steps=9, batch=8, metrics=WorkerMetrics(0), run_log=run_log, activity=activity)
        with patch("taihu.worker.reporting.observer.asdict", wraps=asdict) as worded:
            observer.stepped(record())
    finally:
        structlog.configure(**before)
    wanted = level == logging.DEBUG
    assert worded.called is wanted
    assert [(line["event"], line["step"], line["step_seconds"]) for line in lines] == [("step", 4, 5.0)] * wanted
    assert observer.progress().step == 4
