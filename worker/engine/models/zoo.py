"""The models that can be named in a job file: functions (input_shape, outputs) -> Layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from taihu.worker.engine.base.layer import Layer, Shape
from taihu.worker.engine.layers.batch_norm import BatchNorm
from taihu.worker.engine.layers.containers import PaddedShortcut, Residual, Sequential
from taihu.worker.engine.layers.convolution import Conv2d
from taihu.worker.engine.layers.dense import Flatten, Linear, ReLU
from taihu.worker.engine.layers.pooling import AvgPool2d, GlobalAvgPool, MaxPool2d
from taihu.worker.engine.models.imagenet import alexnet, alexnet_lrn, googlenet, resnet50, vgg16
from taihu.worker.engine.models.transformer import transformer

__all__ = ["MODELS", "alexnet", "cifar10_quick", "mlp", "resnet20", "small_cnn", "small_gpt", "vgg16_cifar"]


def small_cnn(input_shape: Shape, outputs: int) -> Layer:
    """Two convolutions and two fully connected layers; for 8 x 8 digits and somewhat larger images."""
    return Sequential(
        [
            Conv2d(16, 3, padding="same"),
            ReLU(),
            Conv2d(32, 3, padding="same"),
            ReLU(),
            MaxPool2d(2),
            Flatten(),
            Linear(64),
            ReLU(),
            Linear(outputs, gain=1.0),
        ]
    )


def cifar10_quick(input_shape: Shape, outputs: int) -> Layer:
    """Caffe's CIFAR-10 quick: 145,578 parameters for 32 x 32 x 3 images and 10 classes."""
    return Sequential(
        [
            Conv2d(32, 5, padding=2),
            MaxPool2d(3, 2, ceil_mode=True),
            ReLU(),
            Conv2d(32, 5, padding=2),
            ReLU(),
            AvgPool2d(3, 2, ceil_mode=True),
            Conv2d(64, 5, padding=2),
            ReLU(),
            AvgPool2d(3, 2, ceil_mode=True),
            Flatten(),
            Linear(64, gain=1.0),
            Linear(outputs, gain=1.0),
        ]
    )


def resnet20(input_shape: Shape, outputs: int) -> Layer:
    """The 20-layer residual network for CIFAR of He et al. 2015, section 4.2, with option A shortcuts."""
    layers: list[Layer] = [*_norm_convolution(16), ReLU()]
    channels = 16
    for filters in (16, 16, 16, 32, 32, 32, 64, 64, 64):
        stride = 1 if filters == channels else 2
        body = Sequential([*_norm_convolution(filters, stride), ReLU(), *_norm_convolution(filters)])
        shortcut = None if stride == 1 else PaddedShortcut(filters, stride)
        layers += [Residual(body, shortcut), ReLU()]
        channels = filters
    return Sequential([*layers, GlobalAvgPool(), Linear(outputs, gain=1.0)])


def vgg16_cifar(input_shape: Shape, outputs: int) -> Layer:
    """The convolutions of VGG-16 (Simonyan and Zisserman 2014) with batch normalisation and one linear layer."""
    layers: list[Layer] = []
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [*_norm_convolution(filters), ReLU()]
        layers.append(MaxPool2d(2))
    return Sequential([*layers, Flatten(), Linear(outputs, gain=1.0)])


def mlp(input_shape: Shape, outputs: int) -> Layer:
    """Two hidden layers of 128 and 64 units, for rows of features; images are flattened."""
    return Sequential(
        [Flatten(), Linear(128), ReLU(), Linear(64), ReLU(), Linear(outputs, gain=1.0)],
    )


def small_gpt(input_shape: Shape, outputs: int) -> Layer:
    """A transformer of 4 blocks of width 128 with 4 heads: 842,496 parameters for 128 tokens of 256 kinds."""
    return transformer(outputs, blocks=4, width=128, heads=4)


def _norm_convolution(filters: int, stride: int = 1) -> list[Layer]:
    # The normalisation takes the mean away, and with it any bias.
    return [Conv2d(filters, 3, stride, padding=1, bias=False), BatchNorm()]


MODELS: Mapping[str, Callable[[Shape, int], Layer]] = MappingProxyType(
    {
        "small_cnn": small_cnn,
        "cifar10_quick": cifar10_quick,
        "resnet20": resnet20,
        "vgg16_cifar": vgg16_cifar,
        "alexnet": alexnet,
        "alexnet_lrn": alexnet_lrn,
        "vgg16": vgg16,
        "googlenet": googlenet,
        "resnet50": resnet50,
        "mlp": mlp,
        "small_gpt": small_gpt,
    }
)
