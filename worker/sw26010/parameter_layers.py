"""Layers with parameters on the processor model: convolutions, fully connected layers and batch normalisation."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from taihu.kernels.sw26010 import passes
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.pieces import col2im, im2col
from taihu.kernels.sw26010.product import matrix_product
from taihu.worker.engine.base.layer import Array, ParameterLayer, Run
from taihu.worker.sw26010.describe import (
    Convolution,
    Norm,
)
from taihu.worker.sw26010.layer import ParameterProcessorLayer, copy_rows, rows_of


class ConvolutionLayer(ParameterProcessorLayer):
    """A convolution, by an explicit column matrix and products."""

    def __init__(self, layer: ParameterLayer, core_groups: int, description: Convolution) -> None:
        super().__init__(layer, core_groups)
        self._is = description

    @override
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

    @override
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
            ledger = copy_rows(x[..., own], part, self.core_groups)
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
        return ledger.then(copy_rows(part, dx[..., own], self.core_groups))


class FullyConnectedLayer(ParameterProcessorLayer):
    """A fully connected layer, by products."""

    @override
    def compute(self, x: Array, run: Run) -> Array:
        weight = self._own.parameters["weight"]
        y = np.empty((len(x), weight.shape[1]), x.dtype)
        self.forward_ledger = matrix_product(x, weight, y, core_groups=self.core_groups)
        if "bias" in self._own.parameters:
            bias = passes.add_bias(y, self._own.parameters["bias"], core_groups=self.core_groups)
            self.forward_ledger = self.forward_ledger.then(bias)
        return y

    @override
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


class NormLayer(ParameterProcessorLayer):
    """Batch normalisation, by passes over rows."""

    def __init__(self, layer: ParameterLayer, core_groups: int, description: Norm) -> None:
        super().__init__(layer, core_groups)
        self._is = description
        self._moments = np.empty((2, 0))

    @override
    def compute(self, x: Array, run: Run) -> Array:
        rows, y = rows_of(x), np.empty_like(x)
        self._moments = np.empty((2, x.shape[-1]))
        scale, shift = self._own.parameters["scale"], self._own.parameters["shift"]
        self.forward_ledger = passes.batch_norm(
            rows, rows_of(y), scale, shift, self._is.epsilon, self._moments, core_groups=self.core_groups
        )
        kept, buffers, count = self._is.momentum, self.layer.buffers(), len(rows)
        for name, value in (
            ("running_mean", self._moments[0]),
            ("running_variance", self._moments[1] * (count / max(count - 1, 1))),
        ):
            buffers[name][...] = kept * buffers[name] + (1 - kept) * value
        return y

    @override
    def differentiate(self, x: Array, dy: Array, run: Run) -> Array:
        dx, gradients = np.empty_like(x), np.empty((2, x.shape[-1]))
        scale = self._own.parameters["scale"]
        self.backward_ledger = passes.batch_norm_gradient(
            rows_of(x), rows_of(dy), rows_of(dx), scale, self._moments, self._is.epsilon, gradients,
            core_groups=self.core_groups,
        )  # fmt: skip
        self._own.gradients["scale"][...], self._own.gradients["shift"][...] = gradients
        return dx
