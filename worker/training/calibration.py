"""The steps that are measured to plan by, and those after which the workers report: a pure object.

All workers follow the same schedule, so they exchange groups one at a time in the same steps and report together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

_COLD_STEPS = 2


class Schedule(Protocol):
    """The schedule of measured steps."""

    def reports_after(self, step: int) -> bool:
        """Whether the workers report when `step` has ended."""
        ...

    def is_serial(self, step: int) -> bool:
        """Whether the groups of `step` are exchanged one at a time."""
        ...

    def is_measured(self, step: int) -> bool:
        """Whether `step` is part of a report."""
        ...

    def is_steady(self, step: int) -> bool:
        """Whether `step` counts as an ordinary one."""
        ...


class Unmeasured:
    """The schedule of an exchange whose plan stays: nothing is measured."""

    def reports_after(self, step: int) -> bool:
        """Never."""
        return False

    def is_serial(self, step: int) -> bool:
        """Never."""
        return False

    def is_measured(self, step: int) -> bool:
        """Never."""
        return False

    def is_steady(self, step: int) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class Measuring:
    """The schedule: a report after step `calibration_steps`, one soon after, then one every `replan_every` steps.

    The second report follows as many steps after the first, because the first plan changes what was measured: merged
    groups need less of the processor than one for each layer. Later ones notice what has changed outside.
    A run that goes on from step `begun_after` measures anew: machines and links may be others.
    Before each report `calibration_steps - 2` steps are measured: the last third of them exchange their groups one
    at a time, which gives the costs of the links; the others run as always, which gives those of compute and
    compression.
    """

    calibration_steps: int
    replan_every: int
    begun_after: int = 0

    @property
    def serial_steps(self) -> int:
        """The number of steps before a report that exchange their groups one at a time."""
        return max(1, self.calibration_steps // 3)

    def reports_after(self, step: int) -> bool:
        """Whether the workers report when `step` has ended."""
        return self._until_report(step) == 0

    def is_serial(self, step: int) -> bool:
        """Whether the groups of `step` are exchanged one at a time."""
        return self._until_report(step) < self.serial_steps

    def is_measured(self, step: int) -> bool:
        """Whether `step` is part of a report; the first two, which compile, connect and touch memory, are not."""
        return self._until_report(step) < self.calibration_steps - _COLD_STEPS

    def is_steady(self, step: int) -> bool:
        """Whether `step` runs by a plan that was computed and checked, and at full speed."""
        return step - self.begun_after > self._second_report and not self.is_serial(step)

    def _until_report(self, step: int) -> int:
        """Steps from `step` to the next report."""
        step -= self.begun_after
        for report in (self.calibration_steps, self._second_report):
            if step <= report:
                return report - step
        return -(step - self._second_report) % self.replan_every

    @property
    def _second_report(self) -> int:
        return self.calibration_steps + min(self.calibration_steps, self.replan_every)
