"""Reports of a worker on its run while it trains: metrics, log lines, progress, and the results at the end."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import Any, Final

import structlog

from taihu.core.compression import Outcome
from taihu.core.coordination.membership.members import Progress
from taihu.core.coordination.plans.plan import Plan
from taihu.core.planner.profile import Profile
from taihu.core.wire.serving.metrics import WorkerMetrics
from taihu.worker.reporting.activity import Activity
from taihu.worker.reporting.compression_log import CompressionLog
from taihu.worker.reporting.run_log import RunLog
from taihu.worker.training.evaluation import Scores
from taihu.worker.training.progress import ProgressMeter, StepSample
from taihu.worker.training.step_record import StepRecord

_VALUE_BYTES: Final = 4


class Observer:
    """Takes in steps, compressed groups, plans and evaluations as they happen."""

    def __init__(
        self,
        rank: int,
        *,
        total_steps: int,
        batch: int,
        metrics: WorkerMetrics,
        run_log: RunLog,
        activity: Activity,
    ) -> None:
        self._activity = activity
        self._meter = ProgressMeter(total_steps=total_steps, batch=batch)
        self._thresholds = CompressionLog()
        metrics.show_thresholds(self._thresholds.last_drifts)
        self._metrics = metrics
        self._run_log = run_log
        self._batch = batch
        self._skipped_steps = 0
        self._drift = 0.0
        self._log = structlog.get_logger().bind(role="worker", rank=rank)

    def goes_on(self, step: int) -> None:
        """The run goes on behind a step."""
        self._meter.goes_on(step, self._run_log.untested_losses)

    def progress(self) -> Progress:
        """The progress of the run, for heartbeats."""
        return self._activity.told(replace(self._meter.progress, threshold_drift_ratio=self._drift))

    def compressed(self, outcome: Outcome) -> None:
        """A group was compressed; called by the compressing thread."""
        self._thresholds.add(outcome)
        drifts = outcome.drifts[outcome.drifts == outcome.drifts].tolist()  # a first threshold has none
        for drift in drifts:
            self._metrics.threshold_drift.observe(drift)
        if drifts:
            self._drift = drifts[-1]

    def stepped(self, record: StepRecord) -> None:
        """A step and its exchange have ended."""
        sample = record.sample()
        self._activity.stepped()
        self._meter.add(record.step, sample)
        self._run_log.stepped(record.step, sample, record.loss_scale)
        if self._metrics.is_read:
            self._count(record, sample)
        if record.skipped_steps > self._skipped_steps:
            self._run_log.happened("skipped: gradients did not fit into fp16", loss_scale=record.loss_scale)
        self._skipped_steps = record.skipped_steps
        if self._log.is_enabled_for(logging.DEBUG):
            self._log.debug("step", step=record.step, **asdict(sample))

    def computed(self, step: int, loss: float) -> None:
        """The backward of a step has ended."""
        self._run_log.computed(step, loss)

    def _count(self, record: StepRecord, sample: StepSample) -> None:
        metrics = self._metrics
        metrics.step_seconds.observe(sample.step_seconds)
        metrics.compute_seconds.observe(sample.compute_seconds)
        metrics.compress_seconds.observe(sample.compress_seconds)
        metrics.compress_wait_seconds.observe(sample.compress_wait_seconds)
        metrics.exchange_seconds.observe(sample.exchange_seconds)
        metrics.wait_seconds.observe(sample.wait_seconds)
        metrics.selected_ratio.set(sample.selected_ratio)
        metrics.sent_bytes.inc(sample.sent_bytes)
        metrics.received_bytes.inc(sample.received_bytes)
        metrics.samples.inc(self._batch)
        metrics.step.set(record.step)
        metrics.loss.set(sample.loss)
        metrics.loss_scale.set(record.loss_scale)
        metrics.skipped_steps.inc(record.skipped_steps - self._skipped_steps)

    def travels(self, path: str) -> None:
        """Values take `path` now, see `Exchange.path`."""
        if path != self._meter.path:
            self._meter.travels(path)
            self._metrics.travels(path)
            self._log.info("values take another path", path=path)
            self._run_log.happened("values take another path", path=path)

    def planned(self, plan: Plan) -> None:
        """The run goes on by `plan`."""
        self._metrics.predicted_seconds.set(plan.predicted_seconds)
        predicted_ms = round(plan.predicted_seconds * 1e3, 3)
        self._log.info("planned", version=plan.version, groups=len(plan.groups), predicted_ms=predicted_ms)
        facts = {"version": plan.version, "groups": len(plan.groups), "predicted_seconds": plan.predicted_seconds}
        self._run_log.happened("planned", **facts)

    def evaluated(self, tested: Scores, *, epoch: int, seconds: float) -> None:
        """The replica was tested after the last step."""
        evaluation = self._meter.evaluated(
            epoch=epoch, seconds=seconds, test_loss=tested.loss, test_metrics=tested.metrics
        )
        self._run_log.evaluated(evaluation)
        self._metrics.tested(tested.loss, tested.metrics)
        self._log.info("evaluated", **asdict(evaluation))

    def results(self, plan: Plan, profile: Profile | None) -> dict[str, Any]:
        """Results for `--json`, with the last plan and the costs that it was made from."""
        return {
            **self._meter.results(),
            "groups": len(plan.groups),
            "frame_bytes": plan.frame_elements * _VALUE_BYTES,
            "group_layers": [[group.first_layer, group.last_layer] for group in plan.groups],
            "predicted_seconds_per_step": plan.predicted_seconds or None,
            "profile": profile.to_json() if profile is not None else None,
            "thresholds": self._thresholds.results(),
            "evaluations": [asdict(evaluation) for evaluation in self._meter.evaluations],
        }
