"""AlexNet, and one whose fully connected layers have next to no parameters: what a process holds beside them."""

from __future__ import annotations

from taihu.worker.engine import Layer, Linear, ReLU, Sequential
from taihu.worker.engine.models.imagenet import alexnet

__all__ = ["build", "build_narrow"]

_NARROW = 6


def build(input_shape: tuple[int, ...], classes: int) -> Layer:
    """The model of the zoo."""
    return alexnet(input_shape, classes)


def build_narrow(input_shape: tuple[int, ...], classes: int) -> Layer:
    """Its convolutions, and three layers of 6 outputs."""
    whole = alexnet(input_shape, classes)
    assert isinstance(whole, Sequential)  # noqa: S101
    first = next(index for index, layer in enumerate(whole.children) if isinstance(layer, Linear))
    ends = [Linear(_NARROW), ReLU(), Linear(_NARROW), ReLU(), Linear(classes)]
    return Sequential([*whole.children[:first], *ends])
