"""Models for photographs of 224 x 224 pixels, of the papers: functions (input_shape, outputs) -> Layer."""

from __future__ import annotations

from typing import Final

from taihu.worker.engine.base.layer import Layer, Shape
from taihu.worker.engine.layers.batch_norm import BatchNorm
from taihu.worker.engine.layers.branches import Auxiliary, Concat
from taihu.worker.engine.layers.containers import Residual, Sequential
from taihu.worker.engine.layers.convolution import Conv2d
from taihu.worker.engine.layers.dense import Dropout, Flatten, Linear, ReLU
from taihu.worker.engine.layers.pooling import AvgPool2d, GlobalAvgPool, MaxPool2d
from taihu.worker.engine.layers.response_norm import LocalResponseNorm


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


def alexnet(input_shape: Shape, outputs: int) -> Layer:
    """AlexNet as CaffeNet has it, with grouped convolutions and without local response normalisation.

    60,965,224 parameters for 227 x 227 x 3 (or 224 x 224 x 3) images and 1000 classes.
    """
    return _alexnet(outputs, normalised=False)


def alexnet_lrn(input_shape: Shape, outputs: int) -> Layer:
    """AlexNet with local response normalisation behind its first two rectifiers (Krizhevsky et al. 2012; Caffe's).

    60,965,224 parameters for 227 x 227 x 3 (or 224 x 224 x 3) images and 1000 classes.
    """
    return _alexnet(outputs, normalised=True)


def _alexnet(outputs: int, *, normalised: bool) -> Layer:
    def norm() -> list[Layer]:
        return [LocalResponseNorm()] if normalised else []

    return Sequential(
        [
            Conv2d(96, 11, stride=4),
            ReLU(),
            *norm(),
            MaxPool2d(3, 2, ceil_mode=True),
            Conv2d(256, 5, padding=2, groups=2),
            ReLU(),
            *norm(),
            MaxPool2d(3, 2, ceil_mode=True),
            Conv2d(384, 3, padding=1),
            ReLU(),
            Conv2d(384, 3, padding=1, groups=2),
            ReLU(),
            Conv2d(256, 3, padding=1, groups=2),
            ReLU(),
            MaxPool2d(3, 2, ceil_mode=True),
            Flatten(),
            *fully_connected(outputs),
        ]
    )


# Szegedy et al. 2015, table 1: the filters of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5 and pool projection.
_Filters = tuple[int, int, int, int, int, int]
_STAGE_3: Final[tuple[_Filters, ...]] = ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64))
_STAGE_4: Final[tuple[_Filters, ...]] = (
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
)
_STAGE_5: Final[tuple[_Filters, ...]] = ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128))


def googlenet(input_shape: Shape, outputs: int) -> Layer:
    """GoogLeNet (Szegedy et al. 2015) as Caffe has it, with two auxiliary classifiers in training.

    13,378,280 parameters for 224 x 224 x 3 images and 1000 classes, 6,998,552 without the auxiliary classifiers.
    """
    first, *middle, last = (_inception(*filters) for filters in _STAGE_4)
    return Sequential(
        [
            *_rectified(64, 7, 2),
            MaxPool2d(3, 2, ceil_mode=True),
            LocalResponseNorm(),
            *_rectified(64, 1),
            *_rectified(192, 3),
            LocalResponseNorm(),
            MaxPool2d(3, 2, ceil_mode=True),
            *(_inception(*filters) for filters in _STAGE_3),
            MaxPool2d(3, 2, ceil_mode=True),
            first,
            _classifier(outputs),
            *middle,
            _classifier(outputs),
            last,
            MaxPool2d(3, 2, ceil_mode=True),
            *(_inception(*filters) for filters in _STAGE_5),
            GlobalAvgPool(),
            Dropout(0.4),
            Linear(outputs, gain=1.0),
        ]
    )


def _rectified(filters: int, kernel: int, stride: int = 1) -> list[Layer]:
    return [Conv2d(filters, kernel, stride, padding=kernel // 2), ReLU()]


def _inception(  # noqa: PLR0917 - as a row of the paper's table
    one: int, reduce3: int, three: int, reduce5: int, five: int, projection: int
) -> Layer:
    return Concat(
        [
            Sequential(_rectified(one, 1)),
            Sequential([*_rectified(reduce3, 1), *_rectified(three, 3)]),
            Sequential([*_rectified(reduce5, 1), *_rectified(five, 5)]),
            Sequential([MaxPool2d(3, 1, 1), *_rectified(projection, 1)]),
        ]
    )


def _classifier(outputs: int) -> Layer:
    head = [AvgPool2d(5, 3), *_rectified(128, 1), Flatten(), Linear(1024), ReLU(), Dropout(0.7)]
    return Auxiliary(Sequential([*head, Linear(outputs, gain=1.0)]))


def fully_connected(outputs: int) -> list[Layer]:
    """The last three layers of AlexNet and VGG-16."""
    return [Linear(4096), ReLU(), Dropout(0.5), Linear(4096), ReLU(), Dropout(0.5), Linear(outputs, gain=1.0)]
