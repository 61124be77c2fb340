"""Networks whose computing is modelled: its time passes, its activations take memory, and both cost no processor.

So many workers can share few cores, and a step takes what it would take if each had a machine of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from worker.engine import Array, Conv2d, Flatten, Layer, Linear, ReLU, Run, Sequential, Shape

__all__ = ["Paced", "build", "large", "medium", "small"]

_WIDTH: Final = 512
_DEPTH: Final = 4
# Of a sample, over all layers.
_SECONDS: Final = 0.032
_HELD_BYTES: Final = 100_000
# Channels of a chain of convolutions of one pixel, and the units behind it.
_SMALL: Final = (64, 128, 128, 256, 256, 320), 384
_MEDIUM: Final = (128, 192, 256, 384, 384, 512), 768
_LARGE: Final = (256, 384, 512, 768, 1024, 1024), 1024
# A backward takes about twice as long as a forward.
_OF_FORWARD: Final = 1 / 3


class Paced(Layer):
    """y = x, after a time and with memory in proportion to the batch.

    Args:
        seconds: of forward and backward for a sample.
        held_bytes: of a sample, held until the next step.
    """

    def __init__(self, seconds: float, held_bytes: int) -> None:
        super().__init__()
        self._seconds, self._held_bytes = seconds, held_bytes

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape, unchanged."""
        self.name = name
        return input_shape

    def forward(self, x: Array, run: Run) -> Array:
        """Wait, with the memory in use."""
        held = self.workspace.take("held", (len(x), self._held_bytes), "uint8")
        run.team.run(_use, 1, held, self._seconds * _OF_FORWARD * len(x))
        return x

    def backward(self, dy: Array, run: Run) -> Array:
        """Wait."""
        run.team.run(_use, 1, dy[:0], self._seconds * (1 - _OF_FORWARD) * len(dy))
        return dy


def _use(held: Array, seconds: float, *_: int) -> None:
    held[...] = 0
    time.sleep(seconds)


def build(input_shape: Shape, classes: int) -> Layer:
    """Four layers of 512 x 512, each with a part of the modelled time and memory."""
    layers: list[Layer] = [Flatten(), Linear(_WIDTH)]
    for _ in range(_DEPTH):
        layers += [Linear(_WIDTH), Paced(_SECONDS / _DEPTH, _HELD_BYTES // _DEPTH)]
    return Sequential([*layers, Linear(classes, gain=1.0)])


def small(input_shape: Shape, classes: int) -> Layer:
    """A third of a million parameters, see `_chain`."""
    return _chain(*_SMALL, 0.004, classes)


def medium(input_shape: Shape, classes: int) -> Layer:
    """A million parameters, see `_chain`."""
    return _chain(*_MEDIUM, 0.004, classes)


def large(input_shape: Shape, classes: int) -> Layer:
    """Four million parameters, see `_chain`."""
    return _chain(*_LARGE, 0.004, classes)


def _chain(channels: Sequence[int], units: int, seconds: float, classes: int) -> Layer:
    """Convolutions of one pixel, which share a sample's modelled `seconds`, and two layers that have none of them.

    As in many networks parameters grow towards the output, and the time does not.
    """
    layers: list[Layer] = []
    for count in channels:
        layers += [Conv2d(count, 1), Paced(seconds / len(channels), 0)]
    return Sequential([*layers, Flatten(), Linear(units), ReLU(), Linear(classes, gain=1.0)])
