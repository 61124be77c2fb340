"""About a hundred million parameters in layers of one size: what a run holds of them counts, not what it learns."""

from __future__ import annotations

from taihu.worker.engine import Flatten, Layer, Linear, ReLU, Sequential

__all__ = ["build", "build_narrow"]

_WIDTH = 2048
_DEPTH = 24


def build(input_shape: tuple[int, ...], classes: int) -> Layer:
    """24 hidden layers of 2048 x 2048."""
    return _chain(_WIDTH, classes)


def build_narrow(input_shape: tuple[int, ...], classes: int) -> Layer:
    """The same number of layers, of next to nothing: what a process holds without parameters."""
    return _chain(8, classes)


def _chain(width: int, classes: int) -> Layer:
    layers: list[Layer] = [Flatten(), Linear(width), ReLU()]
    for _ in range(_DEPTH):
        layers += [Linear(width), ReLU()]
    return Sequential([*layers, Linear(classes, gain=1.0)])
