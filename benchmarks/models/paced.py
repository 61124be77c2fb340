"""Networks whose computing is modelled: its time passes, its activations take memory, and both cost no processor.

So many workers can share few cores, and a step takes what it would take if each had a machine of its own.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from taihu.core.model.layout import TensorSpec
from taihu.core.model.model_defaults import usual_input
from taihu.worker.engine import (
    Array,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    ParameterLayer,
    ReLU,
    Run,
    Sequential,
    Shape,
    build_model,
)

__all__ = ["Paced", "build", "headed", "large", "medium", "small"]

_WIDTH: Final = 512
_DEPTH: Final = 4
# Of a sample, over all layers.
_SECONDS: Final = 0.032
_HELD_BYTES: Final = 100_000
# Thousands of parameters of the layers of a chain.
_SMALL: Final = (8, 16, 32, 64, 96, 150)
_MEDIUM: Final = (16, 64, 128, 200, 256, 330)
_LARGE: Final = (32, 128, 400, 800, 1000, 1100)
# Gradients are taken out of noise at one of so many places.
_OFFSETS: Final = 4096
# Channels of a chain of convolutions of one pixel, and units behind it.
_CONVOLUTIONS: Final = (64, 64, 128, 128)
_CONNECTED: Final = (1024, 1024)
# Of a sample, over all layers of a chain.
_CHAIN_SECONDS: Final = 0.004
# Of a sample: a step of eight takes what three workers on two cores took in benchmarks/results/compression.json.
_TWIN_SECONDS: Final = MappingProxyType({"vgg16_cifar": 0.3 / 8, "resnet20": 0.055 / 8})
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


class Modelled(ParameterLayer):
    """y = x, beside `elements` parameters whose gradient is noise: nothing is computed, and it takes its time.

    Gradients are of the size of that of the output, and differ from step to step and worker to worker.

    Args:
        elements: number of parameters.
        seconds: of forward and backward for a sample, and all that is done here is done in it.
    """

    def __init__(self, elements: int, seconds: float) -> None:
        super().__init__()
        self._elements, self._seconds = elements, seconds
        self._noise = np.empty(0, dtype=np.float32)

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape, unchanged."""
        self.name = name
        self.tensors = (TensorSpec("weight", (self._elements,)),)
        return input_shape

    def fill(self, generator: np.random.Generator) -> None:
        """Ones."""
        self.parameters["weight"][...] = 1.0

    def compute(self, x: Array, run: Run) -> Array:
        """Wait."""
        run.team.run(_use, 1, x[:0], self._seconds * _OF_FORWARD * len(x))
        return x

    def differentiate(self, dy: Array, run: Run) -> Array:
        """Write noise, and wait for the rest of the time."""
        end = time.perf_counter() + self._seconds * (1 - _OF_FORWARD) * len(dy)
        if not len(self._noise):
            self._noise = np.random.default_rng(0).standard_normal(self._elements + _OFFSETS, dtype=np.float32)
        offset = zlib.crc32(dy.tobytes()) % _OFFSETS
        scale = np.float32(np.abs(dy).mean())
        np.multiply(self._noise[offset : offset + self._elements], scale, out=self.gradients["weight"])
        run.team.run(_use, 1, dy[:0], max(0.0, end - time.perf_counter()))
        return dy


def small(input_shape: Shape, classes: int) -> Layer:
    """A third of a million parameters, see `_chain`."""
    return _chain(_SMALL, classes)


def medium(input_shape: Shape, classes: int) -> Layer:
    """A million parameters, see `_chain`."""
    return _chain(_MEDIUM, classes)


def large(input_shape: Shape, classes: int) -> Layer:
    """Three and a half million parameters, see `_chain`."""
    return _chain(_LARGE, classes)


def vgg16_cifar(input_shape: Shape, classes: int) -> Layer:
    """The layers of the zoo's model as parameters alone, see `_twin`."""
    return _twin("vgg16_cifar", classes)


def resnet20(input_shape: Shape, classes: int) -> Layer:
    """The layers of the zoo's model as parameters alone, see `_twin`."""
    return _twin("resnet20", classes)


def headed(input_shape: Shape, classes: int) -> Layer:
    """A few convolutions, which have all of the modelled time, and fully connected layers of a million parameters."""
    layers: list[Layer] = []
    for channels in _CONVOLUTIONS:
        layers += [Conv2d(channels, 1), Paced(_CHAIN_SECONDS / len(_CONVOLUTIONS), 0)]
    layers.append(Flatten())
    for units in _CONNECTED:
        layers += [Linear(units), ReLU()]
    return Sequential([*layers, Linear(classes, gain=1.0)])


def _twin(name: str, classes: int) -> Layer:
    """As many parameters in each layer as a model of the zoo has, of which nothing is computed, and a last one."""
    counts = [layer.elements for layer in reversed(build_model(name, *usual_input(name)).layout.layers)]
    layers = [Modelled(count, _TWIN_SECONDS[name] / len(counts)) for count in counts]
    return Sequential([Flatten(), *layers, Linear(classes, gain=1.0)])


def _chain(thousands: Sequence[int], classes: int) -> Layer:
    """Layers of so many thousand parameters, of which nothing is computed but that of the last one.

    As in many networks parameters grow towards the output, and the time does not.
    """
    layers = [Modelled(1000 * count, _CHAIN_SECONDS / len(thousands)) for count in thousands]
    return Sequential([Flatten(), *layers, Linear(classes, gain=1.0)])
