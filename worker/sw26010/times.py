"""How long every layer of a model takes on the SW26010: pure, nothing is computed or timed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.nn.window import Window
from kernels.sw26010 import passes
from kernels.sw26010.layer_costs import (
    LayerCost,
    batch_norm_cost,
    convolution_cost,
    elementwise_cost,
    linear_cost,
    pooling_cost,
    update_cost,
)
from kernels.sw26010.machine import CORE_GROUPS
from worker.engine.layer import Layer, Shape
from worker.engine.model import Model
from worker.sw26010.describe import (
    Chain,
    Convolution,
    Drop,
    FullyConnected,
    Norm,
    Pooling,
    Rectifier,
    Reshape,
    Shortcut,
    Sum,
    describe,
    output_shape,
)

__all__ = ["LayerTime", "layer_cost", "layer_times", "step_seconds", "whole_image"]


@dataclass(frozen=True)
class LayerTime:
    """Modelled time of a layer in one training step.

    Attributes:
        name: of the layer.
        kind: as the engine names it.
        cost: the ledgers of forward and backward.
    """

    name: str
    kind: str
    cost: LayerCost

    @property
    def forward_seconds(self) -> float:
        """Of forward."""
        return self.cost.forward.seconds

    @property
    def backward_seconds(self) -> float:
        """Of backward."""
        return self.cost.backward.seconds


def layer_times(
    model: Model, input_shape: Shape, batch: int, core_groups: int = CORE_GROUPS
) -> tuple[LayerTime, ...]:
    """Modelled times of all layers that take time, in forward order; sums of branches stand behind them.

    Args:
        model: built; it need not be bound.
        input_shape: (height, width, channels) of an image.
        batch: images of a step.
        core_groups: that share the batch, 1 to 4.

    Raises:
        ModelError: a layer has no model.
        BlockingError: the machine has no such core groups, or a layer does not fit.
    """
    times: list[LayerTime] = []
    shape = input_shape
    for layer in model.chain:
        shape = _walk(layer, shape, batch, core_groups, times)
    return tuple(times)


def step_seconds(model: Model, input_shape: Shape, batch: int, core_groups: int = CORE_GROUPS) -> float:
    """Forward, backward and an update with momentum of all parameters; the arguments are those of `layer_times`."""
    layers = layer_times(model, input_shape, batch, core_groups)
    update = update_cost(model.layout.elements, core_groups=core_groups).seconds
    return sum(layer.forward_seconds + layer.backward_seconds for layer in layers) + update


def _walk(layer: Layer, shape: Shape, batch: int, core_groups: int, times: list[LayerTime]) -> Shape:
    description = describe(layer)
    if isinstance(description, Chain):
        for child in layer.children:
            shape = _walk(child, shape, batch, core_groups, times)
        return shape
    if isinstance(description, Sum):
        outputs = [_walk(child, shape, batch, core_groups, times) for child in layer.children]
        forward, backward = (
            elementwise_cost(passes.ADD, None, batch * math.prod(side), core_groups=core_groups).forward
            for side in (outputs[0], shape)
        )
        times.append(LayerTime(layer.name, layer.kind, LayerCost(forward, backward)))
        return outputs[0]
    output = output_shape(description, shape)
    if (own := layer_cost(layer, shape, batch, core_groups)) is not None:
        times.append(LayerTime(layer.name, layer.kind, own))
    return output


def layer_cost(layer: Layer, shape: Shape, batch: int, core_groups: int) -> LayerCost | None:  # noqa: PLR0911
    """The ledgers of a layer without children, for samples of `shape`; None where nothing is done."""
    description = describe(layer)
    elements = batch * math.prod(shape)
    match description:
        case Convolution(window, filters, groups, bias):
            return convolution_cost(
                (batch, *_image(shape)),
                filters,
                window,
                groups=groups,
                bias=bias,
                input_gradient=layer.needs_input_gradient,
                core_groups=core_groups,
            )
        case FullyConnected(units, bias):
            gradient = layer.needs_input_gradient
            return linear_cost(batch, shape[0], units, bias=bias, input_gradient=gradient, core_groups=core_groups)
        case Norm():
            return batch_norm_cost(elements // shape[-1], shape[-1], core_groups=core_groups)
        case Pooling(maximum, window, positions):
            images = (batch, *_image(shape))
            window = window or whole_image(shape)
            return pooling_cost(images, positions, window, maximum=maximum, core_groups=core_groups)
        case Rectifier():
            return elementwise_cost(passes.RELU, passes.RELU_GRADIENT, elements, core_groups=core_groups)
        case Drop():
            return elementwise_cost(passes.RELU, passes.RELU, elements, core_groups=core_groups)
        case Shortcut():
            moved = batch * math.prod(output_shape(description, shape))
            return elementwise_cost(passes.COPY, passes.COPY, moved, core_groups=core_groups)
        case Reshape():
            return None
    raise AssertionError(f"{layer.name}: containers are walked through")


def whole_image(shape: Shape) -> Window:
    """One window over an image."""
    side = max(shape[:2])
    return Window(side, side, 0)


def _image(shape: Shape) -> tuple[int, int, int]:
    height, width, channels = shape
    return height, width, channels
