"""The learning rates of a job's schedule, as what is held back follows them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.core.job.schedule import learning_rate
from taihu.core.settings import OptimizerSettings


class ScheduledRates:
    """The learning rates of layers that all follow one schedule.

    Args:
        settings: `in_steps`.
        layers: how many.
    """

    def __init__(self, settings: OptimizerSettings, layers: int) -> None:
        self._settings = settings
        self._rates = np.full(layers, -1.0)

    def of(self, step: int) -> NDArray[np.float64]:
        """Shape (layers,); another array where the rate has changed.

        Raises:
            ValueError: `step` is below 1.
        """
        rate = learning_rate(self._settings, step)
        if rate != self._rates[0]:
            self._rates = np.full_like(self._rates, rate)
        return self._rates
