"""Times of a model's layers on the SW26010: pure, nothing is computed or timed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taihu.kernels.nn.window import Window
from taihu.kernels.sw26010 import passes
from taihu.kernels.sw26010.layer_costs import (
    LayerCost,
    batch_norm_cost,
    convolution_cost,
    copy_cost,
    elementwise_cost,
    linear_cost,
    pooling_cost,
    update_cost,
)
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.machine import CORE_GROUPS
from taihu.worker.engine.base.layer import Layer, ParameterLayer, Shape
from taihu.worker.engine.layers.containers import Sequential
from taihu.worker.engine.models.model import Model
from taihu.worker.sw26010.describe import (
    Branches,
    Chain,
    Classifier,
    Convolution,
    Description,
    Drop,
    FullyConnected,
    Norm,
    Pooling,
    Rectifier,
    Reshape,
    ResponseNorm,
    Shortcut,
    Sum,
    describe,
    output_shape,
)


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
        """Seconds of forward."""
        return self.cost.forward.seconds

    @property
    def backward_seconds(self) -> float:
        """Seconds of backward."""
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
    walk = _Walk(batch, core_groups)
    walk.chain(model.chain, input_shape, _first_differentiated(model), differentiated=True)
    return tuple(walk.times)


@dataclass(frozen=True)
class ModelledStep:
    """Forward and backward of a step as a worker measures them, see `taihu.core.planner.measurement.StepMeasurement`.

    Attributes:
        forward_seconds: of all layers.
        backward_seconds: for each layer of the layout, which is in backward order, since the one before was complete.
    """

    forward_seconds: float
    backward_seconds: tuple[float, ...]

    def moving(self, seconds: float) -> ModelledStep:
        """The step whose first layer is complete so many seconds later."""
        first, *rest = self.backward_seconds
        return replace(self, backward_seconds=(first + seconds, *rest))

    def longer(self, times: float) -> ModelledStep:
        """The step where everything takes so many times as long."""
        return ModelledStep(times * self.forward_seconds, tuple(times * each for each in self.backward_seconds))


def modelled_step(model: Model, input_shape: Shape, batch: int, core_groups: int = CORE_GROUPS) -> ModelledStep:
    """The step that the planner plans by, for a worker on the processor; the arguments are those of `layer_times`."""
    return step_until(model, layer_times(model, input_shape, batch, core_groups), len(model.layout.layers))


def step_until(model: Model, times: Sequence[LayerTime], layers: int, end: int | None = None) -> ModelledStep:
    """The step of `model.chain[:end]`, by the `times` of its layers.

    Args:
        model: built; its layers' indices are those in the layout of what is exchanged.
        times: of all layers.
        layers: in that layout; those behind `end` take no time.
        end: the place in the chain where the step goes on elsewhere.
    """
    of = {layer.name: layer for layer in times}
    seconds = [0.0] * layers
    spent = 0.0
    for layer in _backward_order(model.chain[_first_differentiated(model) : end]):
        spent += of[layer.name].backward_seconds if layer.name in of else 0.0
        if isinstance(layer, ParameterLayer):
            seconds[layer.index], spent = spent, 0.0
    # The sum of a first block is complete after its last gradient.
    seconds[-1] += spent
    behind = () if end is None else {each.name for layer in model.chain[end:] for each in layer.tree()}
    return ModelledStep(sum(each.forward_seconds for each in times if each.name not in behind), tuple(seconds))


def in_backward_order(model: Model, times: Sequence[LayerTime]) -> tuple[LayerTime, ...]:
    """The `times` of a model's layers, in the order in which their backward ends; those that it reaches."""
    of = {layer.name: layer for layer in times}
    reached = _backward_order(model.chain[_first_differentiated(model) :])
    return tuple(of[layer.name] for layer in reached if layer.name in of)


def _first_differentiated(model: Model) -> int:
    """The place in the chain where backward ends."""
    return next(i for i, layer in enumerate(model.chain) if not layer.needs_input_gradient)


def _backward_order(layers: Sequence[Layer]) -> Iterator[Layer]:
    """Every layer when its backward ends; containers behind what they are made of."""
    for layer in reversed(layers):
        yield from _backward_order(layer.children[first_of(layer) :])
        yield layer


def first_of(layer: Layer) -> int:
    """The child that backward of a container ends with."""
    return layer.first_differentiated if isinstance(layer, Sequential) else 0


def step_seconds(model: Model, input_shape: Shape, batch: int, core_groups: int = CORE_GROUPS) -> float:
    """Forward, backward and an update with momentum of all parameters; the arguments are those of `layer_times`."""
    layers = layer_times(model, input_shape, batch, core_groups)
    update = update_cost(model.layout.elements, core_groups=core_groups).seconds
    return sum(layer.forward_seconds + layer.backward_seconds for layer in layers) + update


class _Walk:
    """Goes through a model in forward order."""

    def __init__(self, batch: int, core_groups: int) -> None:
        self._batch, self._core_groups = batch, core_groups
        # Layers that are alike cost the same, and what one costs takes long to find.
        self._known: dict[tuple[Description, Shape, bool], LayerCost | None] = {}
        self.times: list[LayerTime] = []

    def chain(self, layers: Sequence[Layer], shape: Shape, first: int, *, differentiated: bool) -> Shape:
        """Layers one after another; backward, if there is one, ends with the `first`."""
        for index, layer in enumerate(layers):
            shape = self.layer(layer, shape, differentiated=differentiated and index >= first)
        return shape

    def layer(self, layer: Layer, shape: Shape, *, differentiated: bool) -> Shape:
        """One layer and all below it."""
        description = describe(layer)
        if isinstance(description, Chain):
            return self.chain(layer.children, shape, first_of(layer), differentiated=differentiated)
        if isinstance(description, Sum):
            outputs = [self.layer(child, shape, differentiated=differentiated) for child in layer.children]
            self._note(layer, LayerCost(self._addition(outputs[0]), self._addition(shape)), differentiated)
            return outputs[0]
        if isinstance(description, Branches):
            return self._branches(layer, description, shape, differentiated=differentiated)
        if isinstance(description, Classifier):
            self.layer(layer.children[0], shape, differentiated=differentiated)
            self._note(layer, LayerCost(Ledger(), self._addition(shape)), differentiated)
            return shape
        key = description, shape, layer.needs_input_gradient
        if key not in self._known:
            self._known[key] = layer_cost(layer, shape, self._batch, self._core_groups)
        own = self._known[key]
        if own is not None:
            self._note(layer, own, differentiated)
        return output_shape(description, shape)

    def _branches(self, layer: Layer, branches: Branches, shape: Shape, *, differentiated: bool) -> Shape:
        made = [self.layer(child, shape, differentiated=differentiated) for child in layer.children]
        pixels = self._batch * math.prod(made[0][:-1])
        copies = [copy_cost(pixels, channels, core_groups=self._core_groups) for channels in branches.channels]
        total = LayerCost(Ledger(core_groups=self._core_groups), Ledger(core_groups=self._core_groups))
        for i, copy in enumerate(copies):
            backward = total.backward.then(copy.backward)
            if i:
                backward = backward.then(self._addition(shape))
            total = LayerCost(total.forward.then(copy.forward), backward)
        self._note(layer, total, differentiated)
        return (*made[0][:-1], sum(branches.channels))

    def _addition(self, shape: Shape) -> Ledger:
        elements = self._batch * math.prod(shape)
        return elementwise_cost(passes.ADD, None, elements, core_groups=self._core_groups).forward

    def _note(self, layer: Layer, cost: LayerCost, differentiated: bool) -> None:
        done = cost if differentiated else LayerCost(cost.forward)
        self.times.append(LayerTime(layer.name, layer.kind, done))


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
        case ResponseNorm(size):
            return elementwise_cost(*passes.response_norm(size), elements, core_groups=core_groups)
        case Rectifier():
            return elementwise_cost(passes.RELU, passes.RELU_GRADIENT, elements, core_groups=core_groups)
        case Drop():
            return elementwise_cost(passes.RELU, passes.RELU, elements, core_groups=core_groups)
        case Shortcut():
            height, width, channels = _image(output_shape(description, shape))
            return copy_cost(batch * height * width, channels, core_groups=core_groups)
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
