"""The layers of the engine, computed on the processor model; each keeps the ledgers of its latest step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from kernels.nn.window import Window
from kernels.sw26010 import passes
from kernels.sw26010.ledger import Ledger
from kernels.sw26010.pieces import col2im, im2col, pool, pool_gradient
from kernels.sw26010.product import matrix_product
from kernels.sw26010.streams import execute_stream, plan_slabs, plan_stream
from worker.engine.layer import Array, Layer, ParameterLayer, Run
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
)
from worker.sw26010.times import first_of, whole_image

__all__ = ["ProcessorLayer", "on_processor"]


class ProcessorLayer(ABC):
    """One layer on the processor.

    Attributes:
        layer: the engine's, whose parameters, gradients and buffers are used.
        forward_ledger, backward_ledger: of the latest step.
    """

    def __init__(self, layer: Layer, core_groups: int) -> None:
        self.layer = layer
        self.core_groups = core_groups
        self.forward_ledger = Ledger()
        self.backward_ledger = Ledger()

    @property
    def children(self) -> tuple[ProcessorLayer, ...]:
        """The layers that it is made of."""
        return ()

    @abstractmethod
    def forward(self, x: Array, run: Run) -> Array:
        """The output for the batch `x`, in a new array."""

    @abstractmethod
    def backward(self, dy: Array, run: Run) -> Array:
        """Write the gradients of parameters; return that of the input."""


class _WithParameters(ProcessorLayer):
    """A layer with parameters: it announces what it reads and has done, as `ParameterLayer` does."""

    def __init__(self, layer: ParameterLayer, core_groups: int) -> None:
        super().__init__(layer, core_groups)
        self._own = layer
        self._input = np.empty(0)

    def forward(self, x: Array, run: Run) -> Array:
        run.before_layer(self._own.index)
        self._input = x
        return self.compute(x, run)

    def backward(self, dy: Array, run: Run) -> Array:
        run.before_backward(self._own.index)
        dx = self.differentiate(self._input, dy, run)
        run.gradient_ready(self._own.index)
        return dx

    @abstractmethod
    def compute(self, x: Array, run: Run) -> Array:
        """Forward."""

    @abstractmethod
    def differentiate(self, x: Array, dy: Array, run: Run) -> Array:
        """Backward."""


class _Convolution(_WithParameters):
    def __init__(self, layer: ParameterLayer, core_groups: int, description: Convolution) -> None:
        super().__init__(layer, core_groups)
        self._is = description

    def compute(self, x: Array, run: Run) -> Array:
        filters = self._is.filters
        size, stride, padding = self._is.window
        height, width = ((side + 2 * padding - size) // stride + 1 for side in x.shape[1:3])
        y = np.empty((len(x), height, width, filters), x.dtype)
        rows = y.reshape(-1, filters)
        weight = self._own.parameters["weight"].reshape(-1, filters)
        ledger = Ledger()
        for own, outputs in self._groups(x.shape[-1]):
            columns, made = self._columns(x, own, (height, width))
            product = matrix_product(columns, weight[:, outputs], rows[:, outputs], core_groups=self.core_groups)
            ledger = ledger.then(made).then(product)
        if self._is.bias:
            bias = passes.add_bias(rows, self._own.parameters["bias"], core_groups=self.core_groups)
            ledger = ledger.then(bias)
        self.forward_ledger = ledger
        return y

    def differentiate(self, x: Array, dy: Array, run: Run) -> Array:
        filters, sides = self._is.filters, dy.shape[1:3]
        rows = dy.reshape(-1, filters)
        weight = self._own.parameters["weight"].reshape(-1, filters)
        gradient = self._own.gradients["weight"].reshape(-1, filters)
        needed = self.layer.needs_input_gradient
        dx = np.empty_like(x) if needed else x[:0]
        ledger = Ledger()
        for own, outputs in self._groups(x.shape[-1]):
            columns, made = self._columns(x, own, sides)
            part = np.empty((columns.shape[1], rows[:, outputs].shape[1]), x.dtype)
            product = matrix_product(columns.T, rows[:, outputs], part, core_groups=self.core_groups)
            gradient[:, outputs] = part
            ledger = ledger.then(made).then(product)
            if needed:
                back = self._input_gradient(rows[:, outputs], weight[:, outputs], dx, own, sides)
                ledger = ledger.then(back)
        if self._is.bias:
            sums = passes.column_sums(rows, self._own.gradients["bias"], core_groups=self.core_groups)
            ledger = ledger.then(sums)
        self.backward_ledger = ledger
        return dx

    def _groups(self, channels: int) -> list[tuple[slice, slice]]:
        count = self._is.groups
        inputs, outputs = channels // count, self._is.filters // count
        return [(slice(g * inputs, (g + 1) * inputs), slice(g * outputs, (g + 1) * outputs)) for g in range(count)]

    def _columns(self, x: Array, own: slice, sides: tuple[int, ...]) -> tuple[Array, Ledger]:
        """The column matrix of a range of channels."""
        ledger = Ledger()
        if self._is.groups > 1:
            part = np.empty((*x.shape[:3], own.stop - own.start), x.dtype)
            ledger = _copy(x[..., own], part, self.core_groups)
            x = part
        if self._is.window == (1, 1, 0):
            return x.reshape(-1, x.shape[-1]), ledger
        size = self._is.window.size
        columns = np.empty((len(x), *sides, size, size, x.shape[-1]), x.dtype)
        ledger = ledger.then(im2col(x, columns, self._is.window, core_groups=self.core_groups))
        return columns.reshape(-1, size * size * x.shape[-1]), ledger

    def _input_gradient(self, dy: Array, weight: Array, dx: Array, own: slice, sides: tuple[int, ...]) -> Ledger:
        columns = np.empty((len(dy), len(weight)), dy.dtype)
        ledger = matrix_product(dy, weight.T, columns, core_groups=self.core_groups)
        shape = (*dx.shape[:3], own.stop - own.start)
        size = self._is.window.size
        part = columns.reshape(shape) if self._is.window == (1, 1, 0) else np.empty(shape, dx.dtype)
        if self._is.window != (1, 1, 0):
            windows = columns.reshape(len(dx), *sides, size, size, shape[-1])
            ledger = ledger.then(col2im(windows, part, self._is.window, core_groups=self.core_groups))
        if self._is.groups == 1:
            dx[...] = part
            return ledger
        return ledger.then(_copy(part, dx[..., own], self.core_groups))


class _FullyConnected(_WithParameters):
    def compute(self, x: Array, run: Run) -> Array:
        weight = self._own.parameters["weight"]
        y = np.empty((len(x), weight.shape[1]), x.dtype)
        self.forward_ledger = matrix_product(x, weight, y, core_groups=self.core_groups)
        if "bias" in self._own.parameters:
            bias = passes.add_bias(y, self._own.parameters["bias"], core_groups=self.core_groups)
            self.forward_ledger = self.forward_ledger.then(bias)
        return y

    def differentiate(self, x: Array, dy: Array, run: Run) -> Array:
        weight, gradients = self._own.parameters["weight"], self._own.gradients
        ledger = matrix_product(x.T, dy, gradients["weight"], core_groups=self.core_groups)
        dx = x[:0]
        if self.layer.needs_input_gradient:
            dx = np.empty_like(x)
            ledger = ledger.then(matrix_product(dy, weight.T, dx, core_groups=self.core_groups))
        if "bias" in gradients:
            ledger = ledger.then(passes.column_sums(dy, gradients["bias"], core_groups=self.core_groups))
        self.backward_ledger = ledger
        return dx


class _Norm(_WithParameters):
    def __init__(self, layer: ParameterLayer, core_groups: int, description: Norm) -> None:
        super().__init__(layer, core_groups)
        self._is = description
        self._moments = np.empty((2, 0))

    def compute(self, x: Array, run: Run) -> Array:
        rows, y = _rows(x), np.empty_like(x)
        self._moments = np.empty((2, x.shape[-1]))
        scale, shift = self._own.parameters["scale"], self._own.parameters["shift"]
        self.forward_ledger = passes.batch_norm(
            rows, _rows(y), scale, shift, self._is.epsilon, self._moments, core_groups=self.core_groups
        )
        kept, buffers, count = self._is.momentum, self.layer.buffers(), len(rows)
        for name, value in (
            ("running_mean", self._moments[0]),
            ("running_variance", self._moments[1] * (count / max(count - 1, 1))),
        ):
            buffers[name][...] = kept * buffers[name] + (1 - kept) * value
        return y

    def differentiate(self, x: Array, dy: Array, run: Run) -> Array:
        dx, gradients = np.empty_like(x), np.empty((2, x.shape[-1]))
        scale = self._own.parameters["scale"]
        self.backward_ledger = passes.batch_norm_gradient(
            _rows(x), _rows(dy), _rows(dx), scale, self._moments, self._is.epsilon, gradients,
            core_groups=self.core_groups,
        )  # fmt: skip
        self._own.gradients["scale"][...], self._own.gradients["shift"][...] = gradients
        return dx


class _Pooling(ProcessorLayer):
    def __init__(self, layer: Layer, core_groups: int, description: Pooling) -> None:
        super().__init__(layer, core_groups)
        self._is = description
        self._input_shape: tuple[int, ...] = ()
        self._chosen: Array | None = None

    def forward(self, x: Array, run: Run) -> Array:
        self._input_shape = x.shape
        y = np.empty((len(x), *self._is.positions, x.shape[-1]), x.dtype)
        self._chosen = np.empty(y.shape, np.int32) if self._is.maximum else None
        self.forward_ledger = pool(x, y, self._chosen, self._window, core_groups=self.core_groups)
        return y if self._is.window else y.reshape(len(x), -1)

    def backward(self, dy: Array, run: Run) -> Array:
        dx = np.empty(self._input_shape, dy.dtype)
        spread = dy.reshape(len(dy), *self._is.positions, -1)
        self.backward_ledger = pool_gradient(spread, self._chosen, dx, self._window, core_groups=self.core_groups)
        return dx

    @property
    def _window(self) -> Window:
        return self._is.window or whole_image(self._input_shape[1:])


class _Rectifier(ProcessorLayer):
    _output = np.empty(0)

    def forward(self, x: Array, run: Run) -> Array:
        self._output = np.empty_like(x)
        self.forward_ledger = passes.relu(x, self._output, core_groups=self.core_groups)
        return self._output

    def backward(self, dy: Array, run: Run) -> Array:
        dx = np.empty_like(dy)
        self.backward_ledger = passes.relu_gradient(self._output, dy, dx, core_groups=self.core_groups)
        return dx


class _Reshape(ProcessorLayer):
    _input_shape: tuple[int, ...] = ()

    def forward(self, x: Array, run: Run) -> Array:
        self._input_shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, dy: Array, run: Run) -> Array:
        return dy.reshape(self._input_shape)


class _Drop(ProcessorLayer):
    """Dropout: the engine draws the mask, a function of the step alone; its time is that of a pass."""

    def forward(self, x: Array, run: Run) -> Array:
        self.forward_ledger = self._ledger(x.size)
        return np.array(self.layer.forward(x, run))

    def backward(self, dy: Array, run: Run) -> Array:
        self.backward_ledger = self._ledger(dy.size)
        return np.array(self.layer.backward(dy, run))

    def _ledger(self, elements: int) -> Ledger:
        return plan_stream(passes.RELU, elements, core_groups=self.core_groups).cost()


class _Shortcut(ProcessorLayer):
    def __init__(self, layer: Layer, core_groups: int, description: Shortcut) -> None:
        super().__init__(layer, core_groups)
        self._is = description
        self._input_shape: tuple[int, ...] = ()

    def forward(self, x: Array, run: Run) -> Array:
        self._input_shape = x.shape
        kept = x[:, :: self._is.stride, :: self._is.stride]
        full = np.zeros((*kept.shape[:3], self._is.channels), x.dtype)
        full[..., : x.shape[-1]] = kept
        y = np.empty_like(full)
        self.forward_ledger = _copy(full, y, self.core_groups)
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        moved = np.empty_like(dy)
        self.backward_ledger = _copy(dy, moved, self.core_groups)
        dx = np.zeros(self._input_shape, dy.dtype)
        dx[:, :: self._is.stride, :: self._is.stride] = moved[..., : self._input_shape[-1]]
        return dx


class _Chain(ProcessorLayer):
    def __init__(self, layer: Layer, core_groups: int) -> None:
        super().__init__(layer, core_groups)
        self._children = tuple(on_processor(child, core_groups) for child in layer.children)

    @property
    def children(self) -> tuple[ProcessorLayer, ...]:
        return self._children

    def forward(self, x: Array, run: Run) -> Array:
        for child in self._children:
            x = child.forward(x, run)
        return x

    def backward(self, dy: Array, run: Run) -> Array:
        for child in reversed(self._children[first_of(self.layer) :]):
            dy = child.backward(dy, run)
        return dy


class _Sum(_Chain):
    """A sum: the body, then the shortcut if there is one."""

    def forward(self, x: Array, run: Run) -> Array:
        body, shortcut = self._children[0].forward(x, run), x
        if len(self._children) > 1:
            shortcut = self._children[1].forward(x, run)
        y = np.empty_like(body)
        self.forward_ledger = passes.ring_add(body, shortcut, y, core_groups=self.core_groups)
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        shortcut = self._children[1].backward(dy, run) if len(self._children) > 1 else dy
        body = self._children[0].backward(dy, run)
        dx = np.empty_like(body)
        self.backward_ledger = passes.ring_add(body, shortcut, dx, core_groups=self.core_groups)
        return dx


def on_processor(layer: Layer, core_groups: int) -> ProcessorLayer:  # noqa: PLR0911 - one line for each kind
    """The counterpart of a built layer.

    Raises:
        ModelError: there is none.
    """
    description = describe(layer)
    match description:
        case Pooling():
            return _Pooling(layer, core_groups, description)
        case Shortcut():
            return _Shortcut(layer, core_groups, description)
        case Rectifier():
            return _Rectifier(layer, core_groups)
        case Reshape():
            return _Reshape(layer, core_groups)
        case Drop():
            return _Drop(layer, core_groups)
        case Chain():
            return _Chain(layer, core_groups)
        case Sum():
            return _Sum(layer, core_groups)
    assert isinstance(layer, ParameterLayer)  # noqa: S101
    match description:
        case Convolution():
            return _Convolution(layer, core_groups, description)
        case Norm():
            return _Norm(layer, core_groups, description)
        case FullyConnected():
            return _FullyConnected(layer, core_groups)


def _rows(activation: Array) -> Array:
    return activation.reshape(-1, activation.shape[-1])


def _copy(source: Array, target: Array, core_groups: int) -> Ledger:
    """Copy an activation, or a range of its channels, as rows of pixels."""
    shape = (math.prod(source.shape[:3]), source.shape[-1])
    given, made = source.reshape(shape), np.empty(shape, target.dtype)

    def move(local: Array, result: Array) -> None:
        result[...] = local

    ledger = Ledger()
    for own, plan in plan_slabs(passes.COPY, *shape, core_groups=core_groups):
        ledger = ledger.then(execute_stream(plan, [given[:, own]], [made[:, own]], move))
    target[...] = made.reshape(target.shape)
    return ledger
