"""Models for photographs of 224 x 224 pixels, of the papers: functions (input_shape, outputs) -> Layer."""

from __future__ import annotations

from worker.engine.batch_norm import BatchNorm
from worker.engine.containers import Residual, Sequential
from worker.engine.convolution import Conv2d
from worker.engine.dense import Dropout, Flatten, Linear, ReLU
from worker.engine.layer import Layer, Shape
from worker.engine.pooling import GlobalAvgPool, MaxPool2d

__all__ = ["fully_connected", "resnet50", "vgg16"]


def resnet50(input_shape: Shape, outputs: int) -> Layer:
    """The 50-layer residual network of He et al. 2015, table 1, with projections where a stage begins (option B).

    25,557,032 parameters for 1000 classes. A stage's stride is that of its first 3 x 3 convolution, as in most
    programs today; the paper's is one convolution earlier, with a few products less.
    """
    layers: list[Layer] = [Conv2d(64, 7, 2, 3, bias=False), BatchNorm(), ReLU(), MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers += [_bottleneck(channels, width, stride if block == 0 else 1), ReLU()]
            channels = 4 * width
    return Sequential([*layers, GlobalAvgPool(), Linear(outputs, gain=1.0)])


def _bottleneck(channels: int, width: int, stride: int) -> Layer:
    body = Sequential(
        [
            *_norm_convolution(width, 1),
            ReLU(),
            *_norm_convolution(width, 3, stride),
            ReLU(),
            *_norm_convolution(4 * width, 1),
        ]
    )
    same = stride == 1 and channels == 4 * width
    return Residual(body, None if same else Sequential(_norm_convolution(4 * width, 1, stride)))


def _norm_convolution(filters: int, kernel: int, stride: int = 1) -> list[Layer]:
    # The normalisation takes the mean away, and with it any bias.
    return [Conv2d(filters, kernel, stride, padding=kernel // 2, bias=False), BatchNorm()]


def vgg16(input_shape: Shape, outputs: int) -> Layer:
    """VGG-16 (Simonyan and Zisserman 2014, configuration D).

    138,357,544 parameters for 224 x 224 x 3 images and 1000 classes.
    """
    layers: list[Layer] = []
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [Conv2d(filters, 3, padding=1), ReLU()]
        layers.append(MaxPool2d(2))
    return Sequential([*layers, Flatten(), *fully_connected(outputs)])


def fully_connected(outputs: int) -> list[Layer]:
    """The last three layers of AlexNet and VGG-16."""
    return [Linear(4096), ReLU(), Dropout(0.5), Linear(4096), ReLU(), Dropout(0.5), Linear(outputs, gain=1.0)]
