"""The layers of the engine, computed on the processor model; each keeps the ledgers of its latest step."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
from typing_extensions import override

from taihu.kernels.nn.window import Window
from taihu.kernels.sw26010 import passes
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.pieces import pool, pool_gradient
from taihu.kernels.sw26010.streams import Pass, plan_stream
from taihu.worker.engine.base.layer import Array, Layer, ParameterLayer, Run
from taihu.worker.engine.layers.branches import Auxiliary
from taihu.worker.sw26010.describe import (
    Branches,
    Chain,
    Classifier,
    Convolution,
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
)
from taihu.worker.sw26010.layer import ProcessorLayer, copy_rows
from taihu.worker.sw26010.parameter_layers import ConvolutionLayer, FullyConnectedLayer, NormLayer
from taihu.worker.sw26010.times import first_of, whole_image


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
        self.forward_ledger = copy_rows(full, y, self.core_groups)
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        moved = np.empty_like(dy)
        self.backward_ledger = copy_rows(dy, moved, self.core_groups)
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


class _Branches(_Chain):
    """Branches, each followed by a copy of its output to its channels."""

    def __init__(self, layer: Layer, core_groups: int, description: Branches) -> None:
        super().__init__(layer, core_groups)
        ends = list(accumulate(description.channels, initial=0))
        self._parts = [slice(begin, end) for begin, end in pairwise(ends)]

    @override
    def forward(self, x: Array, run: Run) -> Array:
        made = [child.forward(x, run) for child in self._children]
        y = np.empty((*made[0].shape[:-1], self._parts[-1].stop), x.dtype)
        self.forward_ledger = Ledger(core_groups=self.core_groups)
        for part, own in zip(self._parts, made, strict=True):
            self.forward_ledger = self.forward_ledger.then(copy_rows(own, y[..., part], self.core_groups))
        return y

    @override
    def backward(self, dy: Array, run: Run) -> Array:
        spent = Ledger(core_groups=self.core_groups)
        dx: Array | None = None
        for child, part in reversed(list(zip(self._children, self._parts, strict=True))):
            own = np.empty((*dy.shape[:-1], part.stop - part.start), dy.dtype)
            spent = spent.then(copy_rows(dy[..., part], own, self.core_groups))
            gradient = child.backward(own, run)
            if dx is not None:
                total = np.empty_like(gradient)
                spent = spent.then(passes.ring_add(dx, gradient, total, core_groups=self.core_groups))
                gradient = total
            dx = gradient
        assert dx is not None  # noqa: S101
        self.backward_ledger = spent
        return dx


class _AuxiliaryClassifier(_Chain):
    """An auxiliary classifier: the engine's layer keeps its loss, which takes no time."""

    def __init__(self, layer: Auxiliary, core_groups: int) -> None:
        super().__init__(layer, core_groups)
        self._own = layer

    @override
    def forward(self, x: Array, run: Run) -> Array:
        self._own.keep(self._children[0].forward(x, run))
        return x

    @override
    def backward(self, dy: Array, run: Run) -> Array:
        head = self._children[0].backward(self._own.gradient, run)
        dx = np.empty_like(dy)
        self.backward_ledger = passes.ring_add(dy, head, dx, core_groups=self.core_groups)
        return dx


class _ResponseNorm(ProcessorLayer):
    """Local response normalisation: the engine computes it, its time is that of its passes."""

    def __init__(self, layer: Layer, core_groups: int, description: ResponseNorm) -> None:
        super().__init__(layer, core_groups)
        self._passes = passes.response_norm(description.size)

    @override
    def forward(self, x: Array, run: Run) -> Array:
        self.forward_ledger = self._ledger(self._passes[0], x.size)
        return np.array(self.layer.forward(x, run))

    @override
    def backward(self, dy: Array, run: Run) -> Array:
        self.backward_ledger = self._ledger(self._passes[1], dy.size)
        return np.array(self.layer.backward(dy, run))

    def _ledger(self, task: Pass, elements: int) -> Ledger:
        return plan_stream(task, elements, core_groups=self.core_groups).cost()


def on_processor(layer: Layer, core_groups: int) -> ProcessorLayer:  # noqa: PLR0911, PLR0912 - one line for each kind
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
        case Branches():
            return _Branches(layer, core_groups, description)
        case ResponseNorm():
            return _ResponseNorm(layer, core_groups, description)
        case Classifier():
            assert isinstance(layer, Auxiliary)  # noqa: S101
            return _AuxiliaryClassifier(layer, core_groups)
    assert isinstance(layer, ParameterLayer)  # noqa: S101
    match description:
        case Convolution():
            return ConvolutionLayer(layer, core_groups, description)
        case Norm():
            return NormLayer(layer, core_groups, description)
        case FullyConnected():
            return FullyConnectedLayer(layer, core_groups)
