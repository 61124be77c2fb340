"""A worker's part in planning: it keeps what it measures, reports it, and goes on by the plan it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from taihu.core.coordination.plans.plan import Plan
from taihu.core.planner.measurement import GroupMeasurement, StepMeasurement
from taihu.worker.exchange.times import GroupTimes
from taihu.worker.training.calibration import Schedule
from taihu.worker.training.step_record import StepRecord


class Coordinator(Protocol):
    """The coordinator, as a worker that follows its plans sees it."""

    def report_steps(self, step: int, steps: Sequence[StepMeasurement], timeout_s: float | None) -> Plan:
        """Report what was measured until `step`; returns the plan that follows from all workers' reports."""
        ...


class PlanFollower:
    """Collects measured steps and exchanges them for a plan."""

    def __init__(self, measuring: Schedule, client: Coordinator, timeout_s: float | None) -> None:
        self._measuring = measuring
        self._client = client
        self._timeout_s = timeout_s
        self._measured: list[StepMeasurement] = []

    def observe(self, record: StepRecord, number: int | None = None) -> None:
        """Keep a step that is to be reported; its exchange has ended.

        `number` counts those that may be, where others lie between them.
        """
        if self._measuring.is_measured(record.step if number is None else number):
            self._measured.append(_measurement(record))

    def report(self, step: int) -> Plan:
        """Report what was kept until `step`; returns the plan of the steps that follow, agreed with all workers."""
        measured, self._measured = self._measured, []
        return self._client.report_steps(step, measured, self._timeout_s)


def _measurement(record: StepRecord) -> StepMeasurement:
    sample = record.sample()
    return StepMeasurement(
        step=record.step,
        serial=record.serial,
        forward_seconds=record.forward_seconds,
        backward_seconds=tuple(record.backward_seconds),
        groups=tuple(map(group_measurement, record.times)),
        exchange_seconds=sample.exchange_seconds,
        path=record.path,
        seconds=sample.step_seconds,
    )


def group_measurement(times: GroupTimes) -> GroupMeasurement:
    """The report of a worker on a group."""
    return GroupMeasurement(
        elements=times.elements,
        compress_seconds=times.compress_s,
        refreshed=times.refreshed,
        bytes_up=times.bytes_up,
        bytes_down=times.bytes_down,
        up_seconds=times.completed_s - times.submitted_s,
        down_seconds=times.answered_s - times.first_completed_s,
        overlap_seconds=times.completed_s - times.first_completed_s,
    )
