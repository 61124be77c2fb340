"""ResNet-20 for CIFAR, most of whose memory are activations, and a net of next to none."""

from __future__ import annotations

from taihu.worker.engine import Conv2d, GlobalAvgPool, Layer, Linear, Sequential
from taihu.worker.engine.models.zoo import resnet20

__all__ = ["build", "build_narrow"]


def build(input_shape: tuple[int, ...], classes: int) -> Layer:
    """The model of the zoo."""
    return resnet20(input_shape, classes)


def build_narrow(input_shape: tuple[int, ...], classes: int) -> Layer:
    """A convolution of few windows: what a process holds beside parameters and activations."""
    return Sequential([Conv2d(4, 3, stride=4), GlobalAvgPool(), Linear(classes, gain=1.0)])
