"""Descriptions of the engine's layers for the processor: the one place that looks into them."""

from __future__ import annotations

from dataclasses import dataclass

from taihu.core.base.errors import ModelError
from taihu.kernels.nn.window import Window
from taihu.worker.engine.base.layer import Layer, Shape
from taihu.worker.engine.layers.batch_norm import BatchNorm
from taihu.worker.engine.layers.branches import Auxiliary, Concat
from taihu.worker.engine.layers.containers import PaddedShortcut, Residual, Sequential
from taihu.worker.engine.layers.convolution import Conv2d
from taihu.worker.engine.layers.dense import Dropout, Flatten, Linear, ReLU
from taihu.worker.engine.layers.pooling import AvgPool2d, GlobalAvgPool, MaxPool2d
from taihu.worker.engine.layers.response_norm import LocalResponseNorm


@dataclass(frozen=True)
class Convolution:
    """A convolution: windows, filters and groups."""

    window: Window
    filters: int
    groups: int
    bias: bool


@dataclass(frozen=True)
class FullyConnected:
    """A fully connected layer, and its units."""

    units: int
    bias: bool


@dataclass(frozen=True)
class Norm:
    """Batch normalisation."""

    epsilon: float
    momentum: float


@dataclass(frozen=True)
class Pooling:
    """Pooling by maxima or averages; without a window, by averages of whole images."""

    maximum: bool
    window: Window | None
    positions: tuple[int, int]


@dataclass(frozen=True)
class Rectifier:
    """ReLU."""


@dataclass(frozen=True)
class Reshape:
    """Flatten: nothing is moved."""


@dataclass(frozen=True)
class Drop:
    """Dropout."""


@dataclass(frozen=True)
class Shortcut:
    """A shortcut: every `stride`-th pixel, zeros for new channels."""

    channels: int
    stride: int


@dataclass(frozen=True)
class Chain:
    """A chain of layers."""


@dataclass(frozen=True)
class Sum:
    """A sum of a body and a shortcut around it."""


@dataclass(frozen=True)
class Branches:
    """Branches side by side, whose outputs are copied next to each other: so many channels of each."""

    channels: tuple[int, ...]


@dataclass(frozen=True)
class Classifier:
    """An auxiliary classifier beside the chain."""


@dataclass(frozen=True)
class ResponseNorm:
    """Local response normalisation over windows of so many channels."""

    size: int


Description = (
    Convolution
    | FullyConnected
    | Norm
    | ResponseNorm
    | Pooling
    | Rectifier
    | Reshape
    | Drop
    | Shortcut
    | Chain
    | Sum
    | Branches
    | Classifier
)


def describe(layer: Layer) -> Description:  # noqa: PLR0911, PLR0912 - one line for each kind
    """The description of `layer`, which has been built.

    Raises:
        ModelError: the processor model has no such layer.
    """
    match layer:
        case Conv2d():
            return Convolution(layer._window, layer._filters, layer._groups, layer._bias)
        case Linear():
            return FullyConnected(layer._units, layer._bias)
        case BatchNorm():
            return Norm(layer._epsilon, layer._momentum)
        case MaxPool2d() | AvgPool2d():
            height, width = layer._output_shape[:2]
            return Pooling(isinstance(layer, MaxPool2d), layer._window, (height, width))
        case GlobalAvgPool():
            return Pooling(False, None, (1, 1))
        case ReLU():
            return Rectifier()
        case Flatten():
            return Reshape()
        case Dropout():
            return Drop()
        case PaddedShortcut():
            return Shortcut(layer._channels, layer._stride)
        case Sequential():
            return Chain()
        case Residual():
            return Sum()
        case Concat():
            return Branches(layer.channels)
        case Auxiliary():
            return Classifier()
        case LocalResponseNorm():
            return ResponseNorm(layer.response.size)
    raise ModelError(
        f"{layer.name or type(layer).__name__}: the SW26010 model has no such layer; train it with --compute cpu"
    )


def output_shape(description: Description, shape: Shape) -> Shape:
    """The shape of one sample behind a layer without children."""
    match description:
        case Convolution(window, filters, _, _):
            size, stride, padding = window
            return (*((side + 2 * padding - size) // stride + 1 for side in shape[:2]), filters)
        case FullyConnected(units, _):
            return (units,)
        case Pooling(_, window, positions):
            return (shape[2],) if window is None else (*positions, shape[2])
        case Reshape():
            size = 1
            for side in shape:
                size *= side
            return (size,)
        case Shortcut(channels, stride):
            return (-(-shape[0] // stride), -(-shape[1] // stride), channels)
    return shape
