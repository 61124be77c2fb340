"""The meter against plain arithmetic."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.progress import ProgressMeter, StepSample

SECONDS = st.floats(0.001, 10)
SAMPLES = st.builds(
    StepSample,
    loss=st.floats(-5, 5),
    step_seconds=SECONDS,
    compute_seconds=SECONDS,
    exchange_seconds=SECONDS,
    wait_seconds=SECONDS,
    sent_bytes=st.integers(0, 10**9),
    received_bytes=st.integers(0, 10**9),
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
def test_results_leave_the_first_step_out_when_there_is_another(samples: list[StepSample]) -> None:
    meter = ProgressMeter(total_steps=9, batch=1)
    for step, sample in enumerate(samples, 1):
        meter.add(step, sample)
    counted = [s.compute_seconds for s in (samples[1:] or samples)]
    results = meter.results(sent_bytes=1000 * len(samples), received_bytes=10 * len(samples))
    seconds = results["seconds_compute"]
    assert isinstance(seconds, dict)
    assert (seconds["min"], seconds["max"]) == (min(counted), max(counted))
    assert (results["bytes_sent_per_step"], results["bytes_received_per_step"]) == (1000, 10)
    assert results["final_loss"] == samples[-1].loss


def test_an_evaluation_tells_the_training_loss_since_the_one_before() -> None:
    meter = ProgressMeter(total_steps=4, batch=1)
    for step, loss in enumerate((4.0, 2.0, 1.0, 0.0), 1):
        meter.add(step, StepSample(loss, 1, 1, 1, 1, 0, 0))
        if step % 2 == 0:
            meter.evaluated(epoch=step // 2, seconds=1, test_loss=1, test_accuracy=step / 10)
    assert [e.train_loss for e in meter.evaluations] == [3.0, 0.5]
    assert [e.step for e in meter.evaluations] == [2, 4]
    assert meter.progress.test_accuracy == pytest.approx(0.4)
