"""The meter against plain arithmetic."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.worker.training.progress import ProgressMeter, StepSample

SECONDS = st.floats(0.001, 10)
SAMPLES = st.builds(
    StepSample,
    loss=st.floats(-5, 5),
    step_seconds=SECONDS,
    compute_seconds=SECONDS,
    compress_seconds=SECONDS,
    compress_wait_seconds=SECONDS,
    exchange_seconds=SECONDS,
    wait_seconds=SECONDS,
    sent_bytes=st.integers(0, 10**9),
    received_bytes=st.integers(0, 10**9),
    selected_ratio=st.floats(0, 1),
    steady=st.booleans(),
)


@given(st.lists(SAMPLES, min_size=1, max_size=50))
def test_progress_is_the_mean_of_the_last_twenty_steps(samples: list[StepSample]) -> None:
    meter = ProgressMeter(total_steps=50, batch=32)
    for step, sample in enumerate(samples, 1):
        meter.add(step, sample)
    recent = samples[-20:]
    progress = meter.progress
    assert (progress.step, progress.total_steps, progress.loss) == (len(samples), 50, samples[-1].loss)
    assert progress.step_seconds == pytest.approx(fmean(s.step_seconds for s in recent))
    assert progress.wait_seconds == pytest.approx(fmean(s.wait_seconds for s in recent))
    assert progress.samples_per_second == pytest.approx(32 / fmean(s.step_seconds for s in recent))
    assert progress.bytes_sent_per_step == round(fmean(s.sent_bytes for s in recent))


@given(st.lists(SAMPLES, min_size=1, max_size=9))
def test_results_are_those_of_the_steady_steps_after_the_first(samples: list[StepSample]) -> None:
    meter = ProgressMeter(total_steps=9, batch=1)
    for step, sample in enumerate(samples, 1):
        meter.add(step, sample)
    counted = [s for s in samples[1:] if s.steady] or samples
    results = meter.results()
    assert results["measured_steps"] == len(counted)
    seconds = results["seconds_compute"]
    assert isinstance(seconds, dict)
    compute = [s.compute_seconds for s in counted]
    assert (seconds["min"], seconds["max"]) == (min(compute), max(compute))
    assert results["bytes_sent_per_step"] == round(fmean(s.sent_bytes for s in counted))
    assert results["selected_ratio"] == pytest.approx(fmean(s.selected_ratio for s in counted))
    assert results["final_loss"] == samples[-1].loss


def test_an_evaluation_tells_the_training_loss_since_the_one_before() -> None:
    meter = ProgressMeter(total_steps=4, batch=1)
    for step, loss in enumerate((4.0, 2.0, 1.0, 0.0), 1):
        meter.add(step, StepSample(loss, 1, 1, 0, 0, 1, 1, 0, 0))
        if step % 2 == 0:
            meter.evaluated(epoch=step // 2, seconds=1, test_loss=1, test_metrics={"accuracy": step / 10})
    assert [e.train_loss for e in meter.evaluations] == [3.0, 0.5]
    assert [e.step for e in meter.evaluations] == [2, 4]
    assert [e.test_accuracy for e in meter.evaluations] == [0.2, 0.4]
    assert (meter.progress.test_accuracy, meter.progress.test_metric) == (0.4, "")


def test_a_run_without_accuracy_reports_its_first_metric() -> None:
    meter = ProgressMeter(total_steps=1, batch=1)
    meter.add(1, StepSample(4.0, 1, 1, 0, 0, 1, 1, 0, 0))
    evaluation = meter.evaluated(epoch=1, seconds=1, test_loss=1, test_metrics={"rmse": 0.5, "mae": 0.25})
    assert (evaluation.test_accuracy, evaluation.test_metrics) == (None, {"rmse": 0.5, "mae": 0.25})
    assert (meter.progress.test_accuracy, meter.progress.test_metric, meter.progress.test_value) == (-1, "rmse", 0.5)


SAMPLE = StepSample(0.0, 0.1, 0.1, 0.0, 0.0, 0.1, 0.1, 1, 1)


def test_a_run_that_goes_on_tests_what_it_has_trained_itself() -> None:
    """Steps are counted on from a checkpoint; the losses before it are not known here."""
    meter = ProgressMeter(total_steps=120, batch=1)
    for step in (101, 102, 103):
        meter.add(step, replace(SAMPLE, loss=float(step)))
    evaluation = meter.evaluated(epoch=3, seconds=1.0, test_loss=1.0, test_metrics={"accuracy": 0.5})
    assert (evaluation.step, evaluation.train_loss) == (103, 102.0)
    meter.add(104, replace(SAMPLE, loss=7.0))
    assert meter.evaluated(epoch=4, seconds=1.0, test_loss=1.0, test_metrics={"accuracy": 0.5}).train_loss == 7.0
