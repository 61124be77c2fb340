"""A small network whose steps take the time that the environment of its process says: some workers are slower."""

from __future__ import annotations

import os
import time
from typing import Final

from taihu.worker.engine import Array, Flatten, Layer, Linear, ReLU, Run, Sequential, Shape

__all__ = ["STEP_SECONDS", "Pause", "build"]

STEP_SECONDS: Final = "BENCHMARK_STEP_SECONDS"
"""The variable with the seconds of a step; without it nothing is waited for."""

_WIDTH: Final = 128


class Pause(Layer):
    """y = x; each backward waits, and costs no processor."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = float(os.environ.get(STEP_SECONDS, "0"))

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape, unchanged."""
        self.name = name
        return input_shape

    def forward(self, x: Array, run: Run) -> Array:
        """Do nothing."""
        return x

    def backward(self, dy: Array, run: Run) -> Array:
        """Wait."""
        time.sleep(self._seconds)
        return dy


def build(input_shape: Shape, classes: int) -> Layer:
    """One hidden layer, behind the pause: its gradient comes last."""
    return Sequential([Flatten(), Linear(_WIDTH), ReLU(), Pause(), Linear(classes, gain=1.0)])
