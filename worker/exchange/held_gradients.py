"""What fp16 holds back: a step's groups, until it is known whether all of its gradients fit. A pure object.

A step with gradients that fp16 cannot hold is skipped as a whole, by everybody. So nothing of it may have been sent
before its last gradient is there.
"""

from __future__ import annotations

from taihu.optimization import LossScale
from taihu.settings import TrainSettings

__all__ = ["HeldGradients"]


class HeldGradients:
    """The groups of one step at a time, and the loss scale that follows from what became of them.

    Other precisions hold nothing back and scale nothing.

    Attributes:
        overflowed: whether a gradient of this step does not fit.
        skipped: whether this step was skipped.
    """

    def __init__(self, settings: TrainSettings) -> None:
        self._holds = settings.precision == "fp16"
        self._scale = LossScale(settings.loss_scale, settings.loss_scale_growth_steps)
        self._groups: list[int] = []
        self._expected = 0
        self.overflowed = False
        self.skipped = False

    @property
    def loss_scale(self) -> float:
        """What the loss of the present step is multiplied by."""
        return self._scale.value if self._holds else 1.0

    @property
    def skipped_steps(self) -> int:
        """How many steps have been skipped."""
        return self._scale.skipped_steps + self.skipped

    def begin(self, groups: int) -> None:
        """A step of so many groups begins; what became of the one before is known.

        Raises:
            RunError: see `LossScale.update`.
        """
        if self._holds and self._expected:
            self._scale.update(skipped=self.skipped)
        self._expected = groups
        self._groups = []
        self.overflowed = self.skipped = False

    def add(self, group: int, *, fits: bool) -> tuple[int, ...]:
        """The gradients of `group` are there; returns the groups that can be sent."""
        if not self._holds:
            return (group,)
        self.overflowed |= not fits
        self._groups.append(group)
        # What the next forward reads first goes first.
        return tuple(reversed(self._groups)) if len(self._groups) == self._expected else ()
